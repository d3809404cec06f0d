"""The reconciler: makes true what the records say, whatever Redis, RQ or a worker lost.

One gateway of several runs it, under a lease. Every `reconcile_interval_s` it
- puts records back that Redis lost (from `jobs/ID/` in the artifact store),
- enqueues again what should be in line and is not,
- ends or repeats the attempts whose worker has fallen silent,
- removes what uploads left in the staging folder when their gateway died.

What is wrong must stay wrong for a while before it is acted on. That while is measured on this process's monotonic
clock, from when it was first seen; the wall clocks of other machines play no part. All changes go through
`JobStore.update`, so two reconcilers at once do no harm.
"""

import logging
import threading
import time
from collections.abc import Callable

from pydantic import ValidationError
from redis.exceptions import RedisError

from shared import leases
from shared.artifact_store import STAGING
from shared.errors import EyrieError, StatusReason
from shared.ids import is_id, new_id
from shared.job_store import PREFIX, JobNotFound, JobStore
from shared.queue import JobQueue
from shared.schemas.job import ErrorDetail, JobRecord, JobStatus, StageStatus
from shared.settings import Settings

log = logging.getLogger(__name__)
LEASE_KEY = f"{PREFIX}lease:reconciler"
MESSAGE_GRACE_S = 10.0
STAGED_KEPT_S = 86_400


class Reconciler:
    """Looks at all active jobs, again and again.

    Args:
        message_grace_s: how long a message may be missing before it is sent again.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        jobs: JobStore,
        queue: JobQueue,
        settings: Settings,
        message_grace_s: float = MESSAGE_GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.jobs, self.queue, self.settings = jobs, queue, settings
        self.message_grace_s = message_grace_s
        # A lease that lapsed because Redis was away is taken up again by a worker that lives, within this time.
        self.run_grace_s = max(settings.run_lease_s / 3, settings.reconcile_interval_s)
        self.holder = new_id("gw")
        self._clock = clock
        self._wrong_since: dict[tuple[object, ...], float] = {}
        self._unreadable: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        """Look around until `stop` is set. Errors are logged, and the next round tries again."""
        interval = self.settings.reconcile_interval_s
        lease_s = max(3 * interval, 10.0)
        while not stop.wait(interval):
            try:
                if leases.acquire(self.jobs.redis, [LEASE_KEY], self.holder, lease_s):
                    self.round()
                else:
                    self._wrong_since.clear()
            except (RedisError, EyrieError) as error:
                log.warning("the reconciler waits: %s", error)
            except Exception:
                log.exception("the reconciler failed; it goes on with its next round")
        try:
            leases.release(self.jobs.redis, LEASE_KEY, self.holder)
        except RedisError:
            log.info("the reconciler's lease is left to expire")

    def round(self) -> None:
        """Look once at everything."""
        self._rebuild()
        self._sweep()
        before, self._wrong_since = self._wrong_since, {}
        for record in self.jobs.get_many(self.jobs.active_ids()):
            try:
                self._look_at(record, before)
            except (_Moved, JobNotFound):
                continue

    def _look_at(self, record: JobRecord, before: dict[tuple[object, ...], float]) -> None:
        if record.status == JobStatus.PAUSED or self.jobs.run_token(record.id) is not None:
            return
        should_wait = record.status == JobStatus.QUEUED or (record.status == JobStatus.RUNNING and not record.token)
        if should_wait and self.queue.is_waiting(record.id, record.attempt):
            return
        wrong = (record.id, record.status, record.attempt, record.token)
        since = self._wrong_since[wrong] = before.get(wrong, self._clock())
        silent_s = self._clock() - since
        if should_wait and silent_s >= self.message_grace_s:
            log.warning("job %s is not in line: enqueued again", record.id)
            self.queue.enqueue(record.id, record.attempt)
        elif not should_wait and silent_s >= self.run_grace_s:
            self._settle_lost(record)

    def _settle_lost(self, seen: JobRecord) -> None:
        """End or repeat an attempt whose worker is gone."""

        def change(record: JobRecord) -> None:
            if (record.status, record.token, record.attempt) != (
                seen.status,
                seen.token,
                seen.attempt,
            ):
                raise _Moved
            _LOST[record.status](record, self.settings.max_attempts)
            record.token = record.worker = None

        record = self.jobs.update(seen.id, change)
        log.warning("job %s lost its worker while %s: %s now", seen.id, seen.status, record.status)
        self.queue.remove(seen.id, seen.attempt)
        if record.status == JobStatus.RUNNING:
            data = {"reason": record.status_reason, "attempt": record.attempt}
            self.jobs.append_event(record.id, "job", {"status": record.status, **data})
            self.queue.enqueue(record.id, record.attempt)

    def _rebuild(self) -> None:
        """Put back the records that the store has and Redis has not."""
        stored = {name for name in self.jobs.artifacts.list("jobs") if is_id(name, "job")}
        for job_id in sorted(stored - set(self.jobs.list_ids()) - self._unreadable):
            record = self._stored_record(job_id)
            if record is None or not self.jobs.restore(record):
                continue
            log.warning("job %s was not in Redis: put back as %s", job_id, record.status)
            self.jobs.append_event(job_id, "job", {"status": record.status, "restored": True})
            if record.status == JobStatus.QUEUED:
                self.queue.enqueue(record.id, record.attempt)

    def _sweep(self) -> None:
        """Remove staged files that nobody has written to for a day, by the store's own clock."""
        names = list(self.jobs.artifacts.list(STAGING))
        moment = self.jobs.artifacts.now() if names else 0.0
        for name in names:
            try:
                path = self.jobs.artifacts.path(f"{STAGING}/{name}")
                if moment - path.stat().st_mtime > STAGED_KEPT_S:
                    self.jobs.artifacts.delete(f"{STAGING}/{name}")
            except (KeyError, FileNotFoundError):
                continue

    def _stored_record(self, job_id: str) -> JobRecord | None:
        for name in ("terminal.json", "job.json"):
            try:
                content = self.jobs.artifacts.read(f"jobs/{job_id}/{name}")
                return JobRecord.model_validate_json(content)
            except KeyError:
                continue
            except ValidationError:
                log.error("jobs/%s/%s in the artifact store cannot be read", job_id, name)
                self._unreadable.add(job_id)
                return None
        return None


class _Moved(Exception):
    """The record is no longer as it was seen: whoever changed it is alive."""


def _repeat(record: JobRecord, max_attempts: int) -> None:
    record.status_reason = StatusReason.WORKER_LOST
    if record.attempt >= max_attempts:
        message = f"the worker was lost in each of {record.attempt} attempts"
        record.status = JobStatus.FAILED
        record.status_message = message
        record.error = ErrorDetail(
            reason=StatusReason.WORKER_LOST,
            message=message,
            hint="look at the workers' logs: they may lack memory, or be stopped by their host",
        )
        _end_stages(record, StageStatus.FAILED)
        return
    record.status_message = f"attempt {record.attempt} lost its worker; another one goes on"
    record.attempt += 1
    _end_stages(record, StageStatus.PENDING)


def _cancelled(record: JobRecord, _: int) -> None:
    record.status = JobStatus.CANCELLED
    _end_stages(record, StageStatus.CANCELLED)


def _paused(record: JobRecord, _: int) -> None:
    record.status = JobStatus.PAUSED
    _end_stages(record, StageStatus.PENDING)


def _end_stages(record: JobRecord, status: StageStatus) -> None:
    for stage in record.stages:
        if stage.status == StageStatus.RUNNING:
            stage.status = status


_LOST: dict[JobStatus, Callable[[JobRecord, int], None]] = {
    JobStatus.RUNNING: _repeat,
    JobStatus.CANCELLING: _cancelled,
    JobStatus.PAUSING: _paused,
}
