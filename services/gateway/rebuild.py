"""Fills an emptied Redis from the artifact store: every job that is kept there, as it was when it changed last.

A mark in Redis says that this was done. Without the mark the whole store is gone through; with it, now and then, for a
job whose gateway died between store and Redis.
"""

import time

from shared.job_store import JobStore
from shared.live_jobs import PREFIX
from shared.queue import JobQueue
from shared.schemas.job import JobRecord
from shared.state_machine import GOES_ON

MARK = f"{PREFIX}rebuilt"
BATCH = 200


class Rebuilder:
    """Puts jobs back, a batch at a time; several at once do no harm."""

    def __init__(self, jobs: JobStore, queue: JobQueue) -> None:
        self.jobs, self.queue = jobs, queue
        self._passed_over: set[str] = set()
        self._was_done = False

    def is_done(self) -> bool:
        """Tell whether Redis has had all jobs since it was emptied last."""
        return bool(self.jobs.redis.exists(MARK))

    def finish(self, within_s: float) -> bool:
        """Put everything back that is missing, unless that was done; False when the time was too short for it."""
        end = time.monotonic() + within_s
        while not self.is_done():
            if time.monotonic() > end:
                return False
            self.step()
        return True

    def step(self) -> bool:
        """Put a batch back; True when nothing was left to put back.

        What cannot be read is passed over until Redis is emptied again; what is not admitted yet, in this pass only.
        """
        if self._was_done and not self.is_done():
            self._passed_over.clear()
            self._was_done = False
        missing = sorted(self.jobs.archive.ids() - set(self.jobs.list_ids()) - self._passed_over)
        for job_id in missing[:BATCH]:
            record = self.jobs.recover(job_id)
            if record is not None:
                self._enqueue(record)
            elif self.jobs.archive.load(job_id) is None:
                self._passed_over.add(job_id)
        if len(missing) <= BATCH:
            self.jobs.redis.set(MARK, "1")
            self._was_done = True
            self._passed_over = {job_id for job_id in self._passed_over if self.jobs.archive.has(job_id)}
        return len(missing) <= BATCH

    def _enqueue(self, record: JobRecord) -> None:
        if record.status in GOES_ON and record.token is None:
            self.queue.enqueue(record.id, record.attempt)
