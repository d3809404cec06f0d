"""What happened to each job: a bounded stream in Redis, and all of it in the artifact store (`shared.event_archive`).

Keys (all below `eyrie:`):
    events:ID        stream of a job's events, about the latest `EVENTS_KEPT`; an event's id is its stream id
    events:unkept    set of the ids of jobs with events that the artifact store does not have yet
    changes          stream of the ids of jobs that changed, for those who watch; about the latest `CHANGES_KEPT`

An event is kept in the store at once; of metrics, which come many a second, those of up to `KEEP_EVERY_S` are kept
together. A stream that Redis has lost goes on after the last event that is kept, so ids only ever grow.
"""

import json
import logging
import time
from collections.abc import Iterator
from typing import Any, cast

from redis import Redis
from redis.exceptions import RedisError

from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError
from shared.event_archive import START, Entry, EventArchive, position
from shared.schemas.job import now

log = logging.getLogger(__name__)
PREFIX = "eyrie:"
CHANGES = f"{PREFIX}changes"
UNKEPT = f"{PREFIX}events:unkept"
EVENTS_KEPT = 20_000
CHANGES_KEPT = 10_000
KEEP_EVERY_S = 1.0
BATCH = 1000

# ARGV: token ('' for anyone), id of the last event that is kept ('' to be asked for it), job, limits, fields.
APPEND = """
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 'fenced' end
local id = '*'
if redis.call('EXISTS', KEYS[2]) == 0 then
  if ARGV[2] == '' then return 'lost' end
  local time = redis.call('TIME')
  local ms, number = string.match(ARGV[2], '^(%d+)-(%d+)$')
  if time[1] * 1000 + math.floor(time[2] / 1000) <= tonumber(ms) then
    id = ms .. '-' .. string.format('%.0f', number + 1)
  end
end
id = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], id, unpack(ARGV, 6))
redis.call('SADD', KEYS[3], ARGV[3])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[5], '*', 'job', ARGV[3])
return id
"""
KEPT = """
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
if not last or last[1] == ARGV[2] then redis.call('SREM', KEYS[1], ARGV[1]) end
"""


class EventLog:
    """All reads and writes of events."""

    def __init__(self, redis: Redis, artifacts: LocalArtifactStore) -> None:
        self.redis, self.artifacts = redis, artifacts
        self.archive = EventArchive(artifacts)
        self._kept_at: dict[str, float] = {}

    def append(self, job_id: str, kind: str, data: dict[str, Any], token: str | None) -> bool:
        """Add an event; False when `token` is given and no longer the job's live one."""
        fields = _fields(kind, data)
        answer = self._append(self.redis, job_id, fields, token, "")
        if answer == "lost":
            answer = self._append(self.redis, job_id, fields, token, self._archive_end(job_id))
        if answer == "fenced":
            return False
        if kind != "metric" or self._is_due(job_id):
            self.try_keep(job_id)
        return True

    def append_with(self, transaction: Any, job_id: str, kind: str, data: dict[str, Any]) -> None:
        """Add an event as the last command of a transaction; `follow_up` is told what that answered."""
        self._append(transaction, job_id, _fields(kind, data), None, "")

    def follow_up(self, answer: str, job_id: str, kind: str, data: dict[str, Any]) -> None:
        """Bring an event of `append_with` to the artifact store, or add it where Redis had lost the job's stream."""
        if answer == "lost":
            self.append(job_id, kind, data, None)
        else:
            self.try_keep(job_id)

    def read(self, job_id: str, after: str = START, limit: int = BATCH) -> list[Entry]:
        """At most `limit` events that follow `after`, oldest first, from Redis and from the store."""
        pipeline = self.redis.pipeline(transaction=True)
        pipeline.xrange(stream(job_id), count=1)
        pipeline.xrange(stream(job_id), f"({after}", "+", limit)
        first, raw = pipeline.execute()
        live = [decode(entry) for entry in raw]
        if first and position(first[0][0]) <= position(after):
            return live
        kept = self.archive.read(job_id, after, limit, before=first[0][0] if first else None)
        return (kept + live)[:limit]

    def read_all(self, job_id: str) -> Iterator[Entry]:
        """All events of a job, oldest first, a few at a time."""
        here = START
        while entries := self.read(job_id, here):
            yield from entries
            here = entries[-1][0]

    def keep(self, job_id: str) -> None:
        """Bring the artifact store up to date.

        Raises:
            ArtifactStoreError, RedisError
        """
        if not self.artifacts.exists(f"jobs/{job_id}/job.json"):  # the job is gone: so are its events
            self.redis.srem(UNKEPT, job_id)
            return
        end = self.archive.end(job_id)
        while raw := cast("list[Any]", self.redis.xrange(stream(job_id), f"({end}", "+", BATCH)):
            entries = [decode(entry) for entry in raw]
            self.archive.extend(job_id, end, entries)
            end = entries[-1][0]
        self.redis.eval(KEPT, 2, UNKEPT, stream(job_id), job_id, end)

    def try_keep(self, job_id: str) -> None:
        """Bring the artifact store up to date, or leave it to the reconciler: the event itself is in Redis."""
        try:
            self.keep(job_id)
        except (ArtifactStoreError, OSError, RedisError) as error:
            log.warning("job %s: its events are not in the artifact store yet: %s", job_id, error)

    def keep_unkept(self, limit: int, within_s: float) -> None:
        """Keep what nobody could keep when it happened, of at most `limit` jobs, and as far as the time allows."""
        end = time.monotonic() + within_s
        for job_id in cast("list[str]", self.redis.srandmember(UNKEPT, limit)):
            self.try_keep(job_id)
            if time.monotonic() > end:
                return

    def forget(self, job_id: str) -> None:
        """Remove the events of a job that is gone, and tell those who watch; what the store has is its job's."""
        pipeline = self.redis.pipeline()
        pipeline.delete(stream(job_id))
        pipeline.srem(UNKEPT, job_id)
        pipeline.xadd(CHANGES, {"job": job_id}, maxlen=CHANGES_KEPT, approximate=True)
        pipeline.execute()

    def _append(self, redis: Any, job_id: str, fields: dict[str, str], token: str | None, kept: str) -> str:
        keys = [f"{PREFIX}job:{job_id}", stream(job_id), UNKEPT, CHANGES]
        flat = [part for pair in fields.items() for part in pair]
        limits = (EVENTS_KEPT, CHANGES_KEPT)
        return cast("str", redis.eval(APPEND, len(keys), *keys, token or "", kept, job_id, *limits, *flat))

    def _is_due(self, job_id: str) -> bool:
        """Tell whether the job's metrics have waited long enough; they begin to wait again then."""
        moment = time.monotonic()
        if moment - self._kept_at.get(job_id, -KEEP_EVERY_S) < KEEP_EVERY_S:
            return False
        self._kept_at[job_id] = moment
        return True

    def _archive_end(self, job_id: str) -> str:
        try:
            return self.archive.end(job_id)
        except (ArtifactStoreError, OSError) as error:
            log.warning("job %s: what is kept of its events cannot be read: %s", job_id, error)
            return START


def _fields(kind: str, data: dict[str, Any]) -> dict[str, str]:
    return {"type": kind, "at": now().isoformat(), "data": json.dumps(data, default=str)}


def stream(job_id: str) -> str:
    """Where Redis has a job's events."""
    return f"{PREFIX}events:{job_id}"


def decode(entry: tuple[str, dict[str, str]]) -> Entry:
    """An event as Redis has it, with its data read."""
    event_id, fields = entry
    return event_id, {"type": fields["type"], "at": fields["at"], "data": json.loads(fields["data"])}
