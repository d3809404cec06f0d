"""A live run's tie to its record: it renews the lease and learns when it must stop."""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from services.worker.strays import Strays
from services.worker.supervision import WORKER_VARIABLE
from shared.fleet import Fleet
from shared.gpu_leases import GpuLeases
from shared.job_store import Fenced, JobNotFound, JobStore
from shared.schemas.fleet import GpuHolder, VerifierState
from shared.schemas.job import JobStatus, now

log = logging.getLogger(__name__)
CHECK_INTERVAL_S = 0.5


class Interrupted(Exception):
    """The run has to stop before its end; the class says why."""


class CancelRequested(Interrupted):
    """A person cancelled the job."""


class PauseRequested(Interrupted):
    """A person paused the job."""


class WorkerStopping(Interrupted):
    """This worker was told to stop; another one shall go on."""


class RunControl:
    """Holds the run lease of one attempt.

    A Redis that does not answer is waited out: the run goes on, and settles its lease when Redis is back.
    """

    def __init__(self, jobs: JobStore, job_id: str, token: str, lease_s: int, stopping: threading.Event) -> None:
        self.jobs, self.job_id, self.token, self.lease_s = jobs, job_id, token, lease_s
        self.stopping = stopping
        self.gpu_leases = GpuLeases(jobs.redis)
        self.held: list[str] = []
        self._gpus: dict[str, GpuHolder] = {}
        self._verifiers: dict[str, VerifierState] = {}
        self._next_check = 0.0
        self._next_renewal = 0.0

    def check(self) -> None:
        """Renew what is due; to be called several times a second.

        Raises:
            Interrupted: somebody wants the run to stop.
            Fenced: another attempt has taken over.
        """
        if self.stopping.is_set():
            raise WorkerStopping
        moment = time.monotonic()
        if moment < self._next_check:
            return
        self._next_check = moment + CHECK_INTERVAL_S
        try:
            self._check_record()
            self._renew_if_due()
        except RedisError as error:
            log.warning("job %s: Redis does not answer, going on: %s", self.job_id, error)

    def wait(self, seconds: float) -> None:
        """Sleep, with one eye on the record."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, CHECK_INTERVAL_S))

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Go on renewing during a block that cannot: to end processes takes their grace, which is longer than a lease.

        Else the run would be taken for dead, and another one started beside what is still ending.
        """
        stop = threading.Event()
        thread = threading.Thread(target=self._renew_until, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()  # a late renewal would take back what is given back next

    def hold(self, keys: list[str]) -> bool:
        """Lease further keys (a stage's) for as long as the run lives; all of them or none.

        False as well while Redis does not answer: to be asked for again.
        """
        try:
            if not self.jobs.acquire_keys(keys, self.token, self.lease_s):
                return False
        except RedisError as error:
            log.warning("job %s: Redis does not answer, no lease on %s yet: %s", self.job_id, keys, error)
            return False
        self.held.extend(key for key in keys if key not in self.held)
        return True

    def release(self, keys: list[str]) -> None:
        """Give back what `hold` took; while Redis is away, by letting it lapse."""
        self.held = [key for key in self.held if key not in keys]
        try:
            self.jobs.release_keys(keys, self.token)
        except RedisError as error:
            log.warning("job %s: Redis does not answer, the lease on %s lapses: %s", self.job_id, keys, error)

    def ask_for_gpus(self, count: int, pool: list[str], usable: list[str], stage: str) -> list[str]:
        """Stand in line for GPUs and take them when it is this run's turn; see `GpuLeases.ask`.

        Returns:
            `count` GPUs, leased for as long as the run lives; none to be asked again, as while Redis does not answer.
        """
        host = socket.gethostname()
        worker = os.environ.get(WORKER_VARIABLE, host)
        holder = GpuHolder(token=self.token, job_id=self.job_id, stage=stage, worker=worker, host=host, since=now())
        try:
            gpus = self.gpu_leases.ask(holder, count, pool, usable, self.lease_s)
        except RedisError as error:
            log.warning("job %s: Redis does not answer, no lease on GPUs yet: %s", self.job_id, error)
            return []
        self._gpus |= dict.fromkeys(gpus, holder)
        return gpus

    def leave_gpu_line(self) -> None:
        """Stop waiting for GPUs; while Redis is away, by asking no more."""
        try:
            self.gpu_leases.withdraw(self.token)
        except RedisError:
            log.info("job %s: its place in the line for GPUs lapses", self.job_id)

    def give_gpus_back(self, gpus: list[str]) -> None:
        """End leases on GPUs that none of this run's processes uses any more.

        While Redis is away they lapse, and whoever looks at the GPUs next finds them empty.
        """
        if not gpus:
            return
        for gpu in gpus:
            self._gpus.pop(gpu, None)
        try:
            self.gpu_leases.give_back(self.token, gpus)
        except RedisError as error:
            log.warning("job %s: Redis does not answer, the lease on %s lapses: %s", self.job_id, gpus, error)

    def say(self, kind: str, message: str, stage: str) -> None:
        """Tell people who watch the job something; not worth stopping for when Redis is away."""
        try:
            self.jobs.append_event(self.job_id, kind, {"stage": stage, "message": message}, token=self.token)
        except RedisError as error:
            log.warning("job %s: %s, said to nobody: %s", self.job_id, message, error)

    def show_verifier(self, verifier: VerifierState) -> None:
        """Tell the fleet what a verifier of this run is doing, now and for as long as the run lives."""
        worker = os.environ.get(WORKER_VARIABLE, socket.gethostname())
        self._verifiers[verifier.id] = verifier.model_copy(update={"job_id": self.job_id, "worker": worker})
        try:
            self._renew_verifiers()
            if verifier.load_seconds is not None:
                model = self.jobs.get(self.job_id).spec.verifier.model
                Fleet(self.jobs.redis).note_load(model, verifier.load_seconds)
        except (RedisError, JobNotFound):
            log.info("job %s: the fleet hears of its verifier later", self.job_id)

    def forget_verifier(self, verifier_id: str) -> None:
        """Tell the fleet that a verifier of this run was ended."""
        if self._verifiers.pop(verifier_id, None) is not None:
            try:
                Fleet(self.jobs.redis).forget_verifier(verifier_id)
            except RedisError:
                log.info("job %s: its verifier's entry in the fleet lapses", self.job_id)

    def end_strays(self) -> None:
        """End what is left on this machine of runs that are dead: their leases lapse, their processes stay.

        Raises:
            Interrupted, Fenced: while waiting to be sure of it.
        """
        strays = Strays(self.jobs, self.lease_s)
        try:
            while strays.sweep():
                self.wait(CHECK_INTERVAL_S)
        except RedisError as error:
            log.warning("job %s: Redis does not answer, no strays were looked for: %s", self.job_id, error)

    def _check_record(self) -> None:
        try:
            record = self.jobs.get(self.job_id)
        except JobNotFound:
            raise Fenced(self.job_id) from None
        if record.token != self.token:
            raise Fenced(self.job_id)
        if record.status == JobStatus.CANCELLING:
            raise CancelRequested
        if record.status == JobStatus.PAUSING:
            raise PauseRequested

    def _renew_until(self, stop: threading.Event) -> None:
        while not stop.wait(CHECK_INTERVAL_S):
            try:
                self._renew_if_due()
            except RedisError as error:
                log.warning("job %s: Redis does not answer, the run's lease is not renewed: %s", self.job_id, error)
            except Fenced:
                return  # the record will say so, too

    def _renew_if_due(self) -> None:
        """Renew all leases when a third of their time has passed.

        At once where the run's own is gone, as after Redis was emptied: before somebody takes the run for dead.
        """
        moment = time.monotonic()
        if moment >= self._next_renewal or self.jobs.run_token(self.job_id) is None:
            self._renew()
            self._next_renewal = moment + self.lease_s / 3

    def _renew(self) -> None:
        if not self.jobs.acquire_run(self.job_id, self.token, self.lease_s):
            raise Fenced(self.job_id)
        if self.held and not self.jobs.acquire_keys(self.held, self.token, self.lease_s):
            raise Fenced(self.job_id)
        for gpu, holder in list(self._gpus.items()):
            if not self.gpu_leases.renew(holder, [gpu], self.lease_s):
                raise Fenced(self.job_id)
        self._renew_verifiers()

    def _renew_verifiers(self) -> None:
        for verifier in list(self._verifiers.values()):
            Fleet(self.jobs.redis).show_verifier(verifier.model_copy(update={"checked_at": now()}), self.lease_s)
