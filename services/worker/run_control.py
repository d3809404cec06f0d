"""A live run's tie to its record: it renews the lease and learns when it must stop."""

import logging
import threading
import time

from redis.exceptions import RedisError

from services.worker.supervision import end_tree, run_tokens
from shared.job_store import Fenced, JobNotFound, JobStore
from shared.schemas.job import JobStatus

log = logging.getLogger(__name__)
CHECK_INTERVAL_S = 0.5
RENEWAL_GRACE_S = 5.0
STRAY_GRACE_S = 5.0


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
        self.held: list[str] = []
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
            if moment >= self._next_renewal:
                self._renew()
                self._next_renewal = moment + self.lease_s / 3
        except RedisError as error:
            log.warning("job %s: Redis does not answer, going on: %s", self.job_id, error)

    def wait(self, seconds: float) -> None:
        """Sleep, with one eye on the record."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, CHECK_INTERVAL_S))

    def hold(self, keys: list[str]) -> bool:
        """Lease further keys (GPUs, a stage) for as long as the run lives; all of them or none.

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

    def end_strays(self) -> None:
        """End what is left on this machine of runs whose worker was killed: their leases lapse, their processes stay.

        A run whose lease lapsed while Redis was away takes it up again within `RENEWAL_GRACE_S`, and is left alone.

        Raises:
            Interrupted, Fenced: while waiting for that.
        """
        try:
            if self._strays():
                self.wait(RENEWAL_GRACE_S)
                for token in self._strays():
                    log.warning("ending processes of the run %s, whose worker is gone", token)
                    end_tree(token, None, STRAY_GRACE_S)
        except RedisError as error:
            log.warning("job %s: Redis does not answer, no strays were looked for: %s", self.job_id, error)

    def _strays(self) -> set[str]:
        others = run_tokens(self.jobs.artifacts.root) - {self.token}
        return others - {self.jobs.run_token(job_id) for job_id in self.jobs.active_ids()} if others else set()

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

    def _renew(self) -> None:
        if not self.jobs.acquire_run(self.job_id, self.token, self.lease_s):
            raise Fenced(self.job_id)
        if self.held and not self.jobs.acquire_keys(self.held, self.token, self.lease_s):
            raise Fenced(self.job_id)
