"""What changes in the whole service, for a page that shows all of it: which jobs changed, and whether the fleet did.

Changes come together: of a job that changed often meanwhile there is one, with what is true now. They are no history;
that is in the job's own events.
"""

import asyncio
import hashlib
import json
import time
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.concurrency import run_in_threadpool

from services.gateway.change_feed import ChangeFeed
from services.gateway.job_view import job_view
from services.gateway.sse import Messages, message
from shared.event_archive import START, position
from shared.event_log import CHANGES
from shared.fleet import Fleet
from shared.job_store import JobStore
from shared.schemas.fleet import GpuStatus
from shared.schemas.job import JobRecord, Stage

READ_AT_ONCE = 500
REST_S = 0.5  # between two looks: what changes meanwhile comes together
LOOK_S = 2.0


class JobChange(BaseModel):
    """A job that has changed, as it is now."""

    id: str = Field(description="The job.")
    event_id: str = Field(description="Place in the stream of changes; give it as `after`.")
    status: str = Field(description="The job's status, or `deleted`.")
    version: int | None = Field(None, description="Of the record; progress does not count.")
    percent: float | None = None
    stage: Stage | None = None
    updated_at: datetime | None = None


class FleetChange(BaseModel):
    """Something about workers or GPUs has changed: look at them again."""

    version: str = Field(description="Changes when they do.")
    workers: int
    gpus: int
    leased: int
    quarantined: int


class FleetFollower:
    """Streams changes of any job and of the fleet."""

    def __init__(self, redis: "Redis", jobs: JobStore, feed: ChangeFeed) -> None:
        self.redis, self.jobs, self.feed = redis, jobs, feed
        self._look = _FleetLook(Fleet(jobs.redis))

    async def page(self, after: str | None, limit: int) -> tuple[list[JobChange], bool]:
        """Jobs that changed after `after`, in the order of their latest changes, of at most `limit` changes."""
        _, entries = await self._read(after or START, limit + 1)
        return await self._changes(entries[:limit]), len(entries) > limit

    async def follow(self, after: str | None) -> Messages:
        """Changes after `after` (absent: from now on); `reset` where some may be missing: read the lists again."""
        here, fleet = after, ""
        with self.feed.watch() as signal:
            while True:
                try:
                    last, entries = await self._read(here or START, READ_AT_ONCE)
                    if here is None or position(last) < position(here):  # Redis was emptied
                        if here is not None:
                            yield message("reset", {})
                        here, entries = last, []
                    elif entries and await self._is_trimmed(here):
                        yield message("reset", {})
                    for change in await self._changes(entries):
                        yield message("job", change.model_dump_json(exclude={"event_id"}), change.event_id)
                    here = entries[-1][0] if entries else here
                    now = await self._look.now()
                    if now.version != fleet:
                        fleet = now.version
                        yield message("fleet", now.model_dump_json())
                except (RedisError, OSError):
                    await asyncio.sleep(LOOK_S)
                    continue
                await asyncio.sleep(REST_S)
                if len(entries) < READ_AT_ONCE:
                    await signal.wait(LOOK_S)

    async def _read(self, after: str, limit: int) -> tuple[str, list[Any]]:
        """Id of the last change, and at most `limit` changes after `after`."""
        pipeline = self.redis.pipeline(transaction=True)
        pipeline.xrevrange(CHANGES, count=1)
        pipeline.xrange(CHANGES, f"({after}", "+", limit)
        latest, entries = await pipeline.execute()
        return latest[0][0] if latest else START, entries

    async def _is_trimmed(self, after: str) -> bool:
        first: Any = await self.redis.xrange(CHANGES, count=1)
        return bool(first) and after != START and position(first[0][0]) > position(after)

    async def _changes(self, entries: list[Any]) -> list[JobChange]:
        """One change a job, with the id of its latest."""
        latest = {fields["job"]: event_id for event_id, fields in entries}
        ids = sorted(latest, key=lambda job_id: position(latest[job_id]))
        records = await run_in_threadpool(lambda: {record.id: record for record in self.jobs.get_many(ids)})
        return [_change(job_id, latest[job_id], records.get(job_id)) for job_id in ids]


class _FleetLook:
    """What the fleet is like; all readers of a gateway share one look every `LOOK_S`."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._lock = asyncio.Lock()
        self._seen: FleetChange | None = None
        self._seen_at = 0.0

    async def now(self) -> FleetChange:
        async with self._lock:
            if self._seen is None or time.monotonic() - self._seen_at >= LOOK_S:
                self._seen = await run_in_threadpool(self._see)
                self._seen_at = time.monotonic()
            return self._seen

    def _see(self) -> FleetChange:
        workers = [worker.model_dump(mode="json", exclude={"seen_at"}) for worker in self.fleet.workers()]
        gpus = self.fleet.gpus()
        text = json.dumps([workers, [gpu.model_dump(mode="json") for gpu in gpus]], sort_keys=True)
        return FleetChange(
            version=hashlib.sha256(text.encode()).hexdigest()[:16],
            workers=len(workers),
            gpus=len(gpus),
            leased=sum(gpu.status == GpuStatus.LEASED for gpu in gpus),
            quarantined=sum(gpu.status == GpuStatus.QUARANTINED for gpu in gpus),
        )


def _change(job_id: str, event_id: str, record: JobRecord | None) -> JobChange:
    if record is None:
        return JobChange(id=job_id, event_id=event_id, status="deleted")
    progress = job_view(record).progress
    return JobChange(
        id=job_id,
        event_id=event_id,
        status=record.status,
        version=record.version,
        percent=progress.percent,
        stage=progress.stage,
        updated_at=max(record.updated_at, progress.updated_at or record.updated_at),
    )
