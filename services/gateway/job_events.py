"""Events of one job: pages of them, and the stream that goes on where a client's last event was.

An event's id is its place. A page and a stream read Redis and, for what Redis has trimmed or lost, the artifact store:
any gateway can go on where another one stopped.
"""

import asyncio
from collections.abc import Collection
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.concurrency import run_in_threadpool

from services.gateway.change_feed import ChangeFeed
from services.gateway.sse import Messages, message
from shared.errors import ArtifactStoreError
from shared.event_archive import START, Entry, position
from shared.event_log import BATCH, EventLog, decode, stream
from shared.job_store import JobNotFound, JobStore
from shared.live_jobs import job_key
from shared.state_machine import TERMINAL

READ_AT_ONCE = 50  # what a reader that does not read makes a gateway hold
LOOK_S = 5.0  # a reader looks by itself after this time, should nobody wake it
AWAY_S = 1.0
SETTLE_S = 1.0  # only where Redis had lost a job's events does the last one follow the status, and then at once


class EventView(BaseModel):
    """Something that happened to a job."""

    id: str
    type: str = Field(description="job, stage, metric, checkpoint, warning, waiting, ...", examples=["stage"])
    at: datetime
    data: dict[str, Any]


def event_view(event_id: str, fields: dict[str, Any]) -> EventView:
    """Show an event of a job's stream."""
    return EventView(id=event_id, type=fields["type"], at=fields["at"], data=fields["data"])


def event_page(
    events: EventLog, job_id: str, after: str | None, limit: int, types: Collection[str]
) -> tuple[list[EventView], bool]:
    """At most `limit` events that follow `after` (of some types, where any are named), and whether more do."""
    found: list[EventView] = []
    here, batch = after or START, limit + 1 if not types else BATCH
    while entries := events.read(job_id, here, batch):
        here = entries[-1][0]
        found += [event_view(*entry) for entry in entries if not types or entry[1]["type"] in types]
        if len(found) > limit or len(entries) < batch:
            break
    return found[:limit], len(found) > limit


class EventFollower:
    """Streams events of jobs."""

    def __init__(self, redis: "Redis", jobs: JobStore, feed: ChangeFeed) -> None:
        self.redis, self.jobs, self.feed = redis, jobs, feed

    async def follow(self, job_id: str, after: str | None, types: Collection[str]) -> Messages:
        """The events after `after`, those that are still to come, and `end` when the job has ended.

        While Redis or the store is away the stream waits.
        """
        here, settled = after or START, False
        with self.feed.watch(job_id) as changes:
            while True:
                try:
                    entries, status, ended = await self._read(job_id, here)
                except (RedisError, OSError, ArtifactStoreError):
                    await changes.wait(AWAY_S)
                    continue
                for event_id, fields in entries:
                    here = event_id
                    if not types or fields["type"] in types:
                        yield message(fields["type"], event_view(event_id, fields).model_dump_json(), event_id)
                if entries:
                    settled = False
                elif status == "deleted" or (status in TERMINAL and (ended or settled)):
                    yield message("end", {"status": status})
                    return
                else:
                    settled = status in TERMINAL
                    await (asyncio.sleep(SETTLE_S) if settled else changes.wait(LOOK_S))

    async def _read(self, job_id: str, after: str) -> tuple[list[Entry], str, bool]:
        """The next events, the job's status, and whether its latest event is that of its end."""
        pipeline = self.redis.pipeline(transaction=True)
        pipeline.xrange(stream(job_id), count=1)
        pipeline.xrange(stream(job_id), f"({after}", "+", READ_AT_ONCE)
        pipeline.xrevrange(stream(job_id), count=1)
        pipeline.hget(job_key(job_id), "status")
        first, raw, latest, status = await pipeline.execute()
        if status is None:  # Redis was emptied, or somebody has deleted the job
            try:
                await run_in_threadpool(self.jobs.get, job_id)
            except JobNotFound:
                return [], "deleted", True
            return await self._read(job_id, after)
        if first and position(first[0][0]) <= position(after):
            entries = [decode(entry) for entry in raw]
        else:
            entries = await run_in_threadpool(self.jobs.event_log.read, job_id, after, READ_AT_ONCE)
        return entries, status, bool(latest) and _is_end(decode(latest[0]))


def _is_end(entry: Entry) -> bool:
    _, fields = entry
    return fields["type"] == "job" and fields["data"].get("status") in TERMINAL
