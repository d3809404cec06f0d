"""The reconciler: makes true what the records say, whatever Redis, RQ or a worker lost.

One gateway of several runs it, under a lease. Every `reconcile_interval_s` it
- puts records back that Redis lost (from `jobs/ID/` in the artifact store), and keeps there what could not be kept,
- enqueues again what should be in line and is not: lost, stuck in RQ's intermediate list, failed, finished or unknown,
- enqueues what had to wait before its next attempt,
- ends or repeats the attempts whose worker has fallen silent,
- removes what uploads left in the staging folder when their gateway died, and idempotency keys that are a day old.

What is wrong must stay wrong for a while before it is acted on. That while is measured on this process's monotonic
clock, from when it was first seen; the wall clocks of other machines play no part. All changes go through
`JobStore.update`, so two reconcilers at once do no harm. A round reads the line once and the records of those jobs only
that are under way or not in it, `MOST_RECORDS` at most.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from redis.exceptions import RedisError

from services.gateway.idempotency import IdempotencyKeys
from services.gateway.rebuild import Rebuilder
from shared import attempts, leases
from shared.artifact_store import STAGING
from shared.draft_entries import take_back_draft
from shared.errors import EyrieError
from shared.ids import new_id
from shared.job_store import JobNotFound, JobStore
from shared.live_jobs import PREFIX
from shared.queue import JobQueue
from shared.schemas.job import JobRecord, JobStatus, Stage
from shared.settings import Settings

log = logging.getLogger(__name__)
LEASE_KEY = f"{PREFIX}lease:reconciler"
MESSAGE_GRACE_S = 10.0
RUN_GRACE_S = 10.0  # what a worker's call to a Redis that hangs may take
STAGED_KEPT_S = 86_400
MOST_RECORDS = 1000
MOST_EVENT_LOGS = 200
KEEP_WITHIN_S = 5.0
HOUSEKEEPING_ROUNDS = 12
UNDER_WAY = (JobStatus.RUNNING, JobStatus.PAUSING, JobStatus.CANCELLING)


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
        self.message_grace_s = min(message_grace_s, settings.run_lease_s)
        # A lease that lapsed because Redis was away is taken up again by a worker that lives, within this time.
        self.run_grace_s = max(min(RUN_GRACE_S, settings.run_lease_s), settings.reconcile_interval_s)
        self.holder = new_id("gw")
        self.rebuilder = Rebuilder(jobs, queue)
        self._keys = IdempotencyKeys(jobs.redis, jobs.artifacts)
        self._clock = clock
        self._rounds = 0
        self._wrong_since: dict[tuple[object, ...], float] = {}

    def run(self, stop: threading.Event) -> None:
        """Look around until `stop` is set. Errors are logged, and the next round tries again."""
        interval = self.settings.reconcile_interval_s
        lease_s = max(3 * interval, 10.0)
        more = False
        while not stop.wait(0 if more else interval):
            more = False
            try:
                if leases.acquire(self.jobs.redis, [LEASE_KEY], self.holder, lease_s):
                    more = self.round()
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

    def round(self) -> bool:
        """Look once at everything; True when there is so much to put back that the next round should not wait."""
        housekeeping = self._rounds % HOUSEKEEPING_ROUNDS == 0
        self._rounds += 1
        self._look_at_all()  # first: what follows needs the store, which may be away, or slow to say so
        more = (housekeeping or not self.rebuilder.is_done()) and not self.rebuilder.step()
        self.jobs.keep_unkept(MOST_RECORDS, KEEP_WITHIN_S)
        self.jobs.event_log.keep_unkept(MOST_EVENT_LOGS, KEEP_WITHIN_S)
        if housekeeping:
            self._sweep()
        return more

    def _look_at_all(self) -> None:
        before, self._wrong_since = self._wrong_since, {}
        under_way = sorted(self.jobs.ids_in(*UNDER_WAY))
        not_in_line = sorted(self.jobs.ids_in(JobStatus.QUEUED).difference(self.queue.jobs_in_line()))
        wanted = [*under_way, *not_in_line][:MOST_RECORDS]
        found = set()
        for record in self.jobs.get_many(wanted):
            found.add(record.id)
            try:
                self._look_at(record, before)
            except (_Moved, JobNotFound):
                continue
        for job_id in set(wanted) - found:  # its record alone was lost, or its place was reserved and it never came
            wrong_s = self._wrong_for((job_id,), before)
            if wrong_s >= self.message_grace_s and self.jobs.recover(job_id) is None:
                self.jobs.give_place_back(job_id)

    def _look_at(self, record: JobRecord, before: dict[tuple[object, ...], float]) -> None:
        waits = record.status == JobStatus.QUEUED or (record.status == JobStatus.RUNNING and not record.token)
        if self.jobs.run_token(record.id) is not None:
            return
        if waits and (self.queue.is_waiting(record.id, record.attempt) or self.jobs.backs_off(record.id)):
            return
        if waits and record.retry_after_s is not None:
            self.jobs.update(record.id, partial(_stop_waiting, record))
            self.queue.enqueue(record.id, record.attempt)
            return
        wrong_s = self._wrong_for((record.id, record.status, record.attempt, record.token), before)
        if waits and wrong_s >= self.message_grace_s:
            log.warning("job %s is not in line: enqueued again", record.id)
            self.queue.enqueue(record.id, record.attempt)
        elif not waits and wrong_s >= self.run_grace_s:
            self._settle_lost(record)

    def _wrong_for(self, wrong: tuple[object, ...], before: dict[tuple[object, ...], float]) -> float:
        """Seconds since something was first seen to be wrong, in rounds without a gap."""
        since = self._wrong_since[wrong] = before.get(wrong, self._clock())
        return self._clock() - since

    def _settle_lost(self, seen: JobRecord) -> None:
        """End or repeat an attempt whose worker is gone."""

        def change(record: JobRecord) -> None:
            _require_same(seen, record)
            attempts.lose(record, self.settings)

        record = self.jobs.update(seen.id, change)
        log.warning("job %s lost its worker while %s: %s now", seen.id, seen.status, record.status)
        self.queue.remove(seen.id, seen.attempt)
        if record.status == JobStatus.CANCELLED:
            take_back_draft(self.jobs, record.id, record.stage(Stage.PUBLISH).key)
        if record.status == JobStatus.RUNNING:
            self.queue.enqueue(record.id, record.attempt)

    def _sweep(self) -> None:
        """Remove idempotency keys and staged files that are a day old, by the store's own clock."""
        self._keys.forget_old()
        names = list(self.jobs.artifacts.list(STAGING))
        moment = self.jobs.artifacts.now() if names else 0.0
        for name in names:
            try:
                _, changed = self.jobs.artifacts.measure(f"{STAGING}/{name}")
            except KeyError:
                continue
            if moment - changed > STAGED_KEPT_S:
                self.jobs.artifacts.delete(f"{STAGING}/{name}")


class _Moved(Exception):
    """The record is no longer as it was seen: whoever changed it is alive."""


def _require_same(seen: JobRecord, record: JobRecord) -> None:
    if (record.status, record.token, record.attempt) != (seen.status, seen.token, seen.attempt):
        raise _Moved


def _stop_waiting(seen: JobRecord, record: JobRecord) -> None:
    _require_same(seen, record)
    record.retry_after_s = None
