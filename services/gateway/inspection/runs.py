"""Inspections that run: each in a child process, once at a time in the whole fleet, a few at a time in one gateway.

Redis holds `eyrie:inspection:KEY`: a JSON document with its owner's token and the progress. The owner renews it while
the child lives; it expires when the owning gateway has died, and any gateway may begin anew. A failure stays in it for
`FAILED_KEPT_S`, so that all who wait are told. A finished inspection is in the store, beside the dataset.
"""

import json
import logging
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import cast

from pydantic import ValidationError
from redis import Redis
from redis.exceptions import RedisError

from services.gateway.inspection import process
from services.gateway.inspection.documents import Failure, Inspection, InspectionProgress, InspectionRequest, Report
from services.gateway.inspection.process import REQUEST, RESULT
from services.gateway.inspection.request import request_key
from services.gateway.problems import Problem
from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError, CapacityError
from shared.ids import new_id
from shared.live_jobs import PREFIX
from shared.schemas.job import now

log = logging.getLogger(__name__)
AT_ONCE = 2
MOST_WAITING = 32
LEASE_S = 15.0
BEAT_S = 1.0
FAILED_KEPT_S = 10.0
PROVISIONAL_KEPT_S = 60.0
STOP_S = 5.0

CLAIM = """
local known = redis.call('GET', KEYS[1])
if known then return known end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
"""
RENEW = """
local known = redis.call('GET', KEYS[1])
if known and cjson.decode(known)['token'] ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
RELEASE = """
local known = redis.call('GET', KEYS[1])
if known and cjson.decode(known)['token'] == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


@dataclass
class Run:
    """An inspection that this gateway runs, or waits to run."""

    key: str
    request: InspectionRequest
    token: str = field(default_factory=lambda: new_id("run"))
    progress: InspectionProgress = field(default_factory=InspectionProgress)
    failure: Failure | None = None

    @property
    def name(self) -> str:
        """Its key in Redis."""
        return f"{PREFIX}inspection:{self.key}"

    def state(self) -> str:
        """What Redis holds of it."""
        report = Report(progress=self.progress, failure=self.failure)
        return json.dumps({"token": self.token, **report.model_dump()})


class Inspections:
    """Finds, joins or starts inspections.

    Args:
        at_once: child processes of this gateway.
    """

    def __init__(self, store: LocalArtifactStore, redis: Redis, at_once: int = AT_ONCE) -> None:
        self.store, self.redis = store, redis
        self._slots = threading.Semaphore(at_once)
        self._guard = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._closing = threading.Event()

    def look(self, request: InspectionRequest) -> Inspection | InspectionProgress:
        """The finished inspection, or how far it is; it is started where nobody has it under way.

        Raises:
            Problem: it failed, or this gateway is stopping.
            CapacityError: too many are waiting.
        """
        run = Run(request_key(request), request)
        if stored := self._stored(run):
            return stored
        if self._closing.is_set():
            raise Problem(503, "this gateway is stopping; ask again", headers={"Retry-After": "2"})
        known = cast("str | None", self.redis.eval(CLAIM, 1, run.name, run.state(), _ms(LEASE_S)))
        if known is None:
            return self._begin(run)
        report = Report.model_validate_json(known)
        if report.failure:
            raise Problem(report.failure.status, report.failure.detail)
        return report.progress

    def close(self) -> None:
        """End all that runs here; another gateway may take it up."""
        self._closing.set()
        with self._guard:
            children, threads = list(self._children.values()), list(self._threads.values())
        for child in children:
            child.kill()
        for thread in threads:
            thread.join(STOP_S)

    def _stored(self, run: Run) -> Inspection | None:
        try:
            found = Inspection.model_validate_json(self.store.read(_result_key(run)))
        except (KeyError, ValidationError):
            return None
        age = abs((now() - found.created_at).total_seconds())
        return None if found.provisional and age > PROVISIONAL_KEPT_S else found

    def _begin(self, run: Run) -> Inspection | InspectionProgress:
        if stored := self._stored(run):  # it ended between the two looks
            self._release(run)
            return stored
        with self._guard:
            full = len(self._threads) >= MOST_WAITING
            if not full:
                thread = threading.Thread(target=self._work, args=(run,), name=f"inspection {run.key}", daemon=True)
                self._threads[run.key] = thread
                thread.start()
        if full:
            self._release(run)
            raise CapacityError(f"{MOST_WAITING} inspections are waiting already", hint="ask again in a while")
        return run.progress

    def _work(self, run: Run) -> None:
        """Wait for a slot, inspect, and leave the result in the store or the failure in Redis."""
        try:
            while not self._slots.acquire(timeout=BEAT_S):
                if self._closing.is_set() or not self._renew(run):
                    return
            try:
                self._inspect(run)
            finally:
                self._slots.release()
        except (ArtifactStoreError, OSError) as error:
            run.failure = Failure(status=503, detail=f"the inspection cannot be run or stored: {error}")
        except Exception:
            log.exception("inspection %s", run.key)
            run.failure = Failure(status=500, detail="this is a defect of the service; its log says more")
        finally:
            with self._guard:
                self._threads.pop(run.key, None)
                self._children.pop(run.key, None)
            if run.failure and not self._closing.is_set():
                self._renew(run, FAILED_KEPT_S)
            else:
                self._release(run)

    def _inspect(self, run: Run) -> None:
        dataset = self.store.path(f"datasets/{run.request.dataset}")
        work = self.store.staging_file()
        try:
            work.mkdir()
            (work / REQUEST).write_text(run.request.model_dump_json(), encoding="utf-8")
            code = self._follow(run, [str(dataset), str(work)])
            if run.failure is None and code == 0:
                self.store.adopt(_result_key(run), work / RESULT)
            elif run.failure is None:
                run.failure = _ended_badly(code)
                log.error("inspection %s of %s ended with %s", run.key, run.request.dataset, code)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _follow(self, run: Run, arguments: list[str]) -> int:
        """Run the child to its end; its exit code, negative for a signal."""
        command = [sys.executable, "-m", process.__name__, *arguments]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        ) as child:
            with self._guard:
                self._children[run.key] = child
            if self._closing.is_set():
                child.kill()
            assert child.stdout is not None
            for line in child.stdout:
                report = Report.model_validate_json(line)
                run.progress, run.failure = report.progress, report.failure
                if not self._renew(run):
                    child.kill()  # this gateway was silent for so long that another one has begun anew
        return child.returncode

    def _renew(self, run: Run, keep_s: float = LEASE_S) -> bool:
        """Show the run's state; False when it is another gateway's by now."""
        try:
            return bool(self.redis.eval(RENEW, 1, run.name, run.token, run.state(), _ms(keep_s)))
        except RedisError as error:
            log.warning("inspection %s goes on without Redis: %s", run.key, error)
            return True

    def _release(self, run: Run) -> None:
        try:
            self.redis.eval(RELEASE, 1, run.name, run.token)
        except RedisError as error:
            log.warning("inspection %s stays claimed for a while: %s", run.key, error)


def _result_key(run: Run) -> str:
    return f"datasets/{run.request.dataset}/inspections/{run.key}.json"


def _ended_badly(code: int) -> Failure:
    if code < 0:
        return Failure(
            status=503,
            detail=f"the inspection's process was killed (signal {-code}), perhaps because memory ran out; nothing was "
            "kept: ask again, with a smaller `sample`, or give the gateway more memory",
        )
    return Failure(
        status=500, detail="the inspection's process failed; this is a defect of the service, its log says more"
    )


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
