"""Job records in Redis: versioned compare-and-set. `shared.job_lists` reads many of them, `shared.live_jobs` has what
is beside them.

Keys (all below `eyrie:`):
    job:ID         hash: `record` (JSON), `version`, `token`, `progress` (JSON), `retried_as`, and what lists are
                   filtered by: `status`, `preset`, `name`, `metadata` (JSON)
    jobs           sorted set of ids by time of creation
    jobs:STATUS    set of ids, for each status that is not terminal
    jobs:unkept    sorted set of ids by the version that the artifact store does not have yet
    deleted:ID     there for an hour after a job was deleted: nobody who has read it before puts it back

A job that Redis has lost is put back from the artifact store (`shared.job_archive`) by whoever asks for it first.
"""

import json
import logging
import time
from collections.abc import Callable
from typing import Any, cast

from redis import Redis
from redis.exceptions import RedisError, WatchError

from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError, InternalError
from shared.figures import ATTEMPTS_ENDED, JOBS_ENDED, Tally
from shared.ids import is_id, new_id
from shared.job_archive import JobArchive
from shared.job_lists import FIELDS, JOBS, JobLists, JobNotFound, record_of, status_key
from shared.live_jobs import ENDED, PREFIX, job_key, run_key
from shared.schemas.job import JobRecord, JobStatus, StageStatus, now
from shared.schemas.spec import JobSpec
from shared.state_machine import ACTIVE, TERMINAL, check_transition

__all__ = ["Fenced", "JobNotFound", "JobStore"]
log = logging.getLogger(__name__)
MAX_CONFLICTS = 64
UNKEPT = f"{JOBS}:unkept"
DELETED_KEPT_S = 3600

RESERVE = """
if redis.call('EXISTS', KEYS[2]) == 1 or redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 1 end
if redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
return redis.call('SADD', KEYS[1], ARGV[1])
"""
GIVE_PLACE_BACK = """
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('SREM', KEYS[1], ARGV[1]) end
"""
NAME_RETRY = """
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'retried_as', ARGV[1]) end
"""
KEPT = """
local version = redis.call('ZSCORE', KEYS[1], ARGV[1])
if version and tonumber(version) <= tonumber(ARGV[2]) then redis.call('ZREM', KEYS[1], ARGV[1]) end
"""


class Fenced(Exception):
    """The attempt that asks is no longer the job's live attempt: it must stop and change nothing."""


class JobStore(JobLists):
    """All reads and writes of job records. Every version is also kept in the artifact store."""

    def __init__(self, redis: Redis, artifacts: LocalArtifactStore) -> None:
        super().__init__(redis, artifacts)
        self.artifacts = artifacts
        self.archive = JobArchive(artifacts)

    def reserve(self, job_id: str, most: int) -> bool:
        """Take one of `most` places for jobs that wait; `create` fills it. False when all are taken.

        A job that is there already takes none: another caller has made it, and it may run by now.
        """
        return bool(self.redis.eval(RESERVE, 2, status_key(JobStatus.QUEUED), job_key(job_id), job_id, most))

    def give_place_back(self, job_id: str) -> None:
        """Give back what `reserve` took, for a job that was not created."""
        self.redis.eval(GIVE_PLACE_BACK, 2, status_key(JobStatus.QUEUED), job_key(job_id), job_id)

    def create(self, spec: JobSpec, job_id: str | None = None, retry_of: str | None = None) -> JobRecord:
        """Store a new job, first in the artifact store, then in Redis. Of several calls with one id the first holds."""
        moment = now()
        record = JobRecord(
            id=job_id or new_id("job"), spec=spec, retry_of=retry_of, created_at=moment, updated_at=moment
        )
        self.archive.admit(record)
        if retry_of is not None:
            self.redis.eval(NAME_RETRY, 1, job_key(retry_of), record.id)
        if not self._insert(record):
            return self.get(record.id)
        self.append_event(record.id, "job", {"status": record.status})
        return record

    def recover(self, job_id: str) -> JobRecord | None:
        """Put back a job that Redis has lost, as the artifact store has it.

        Returns:
            Its record if this call put it back; None when Redis has it, or nobody has.
        """
        if not is_id(job_id, "job") or self.redis.exists(job_key(job_id)):
            return None
        record = self.archive.load(job_id)
        if record is None or not self._insert(record):
            return None
        log.warning("job %s was not in Redis: put back as %s", job_id, record.status)
        self.append_event(job_id, "job", {"status": record.status, "attempt": record.attempt, "restored": True})
        return record

    def get(self, job_id: str) -> JobRecord:
        """Return the record as it is now, with the running stage's progress.

        Raises:
            JobNotFound
        """
        values = cast("list[str | None]", self.redis.hmget(job_key(job_id), FIELDS))
        if values[0] is None:
            if self.recover(job_id) is None and not self.redis.exists(job_key(job_id)):
                raise JobNotFound(job_id)
            return self.get(job_id)
        return record_of(values)

    def update(self, job_id: str, change: Callable[[JobRecord], None], *, token: str | None = None) -> JobRecord:
        """Apply `change` to the record by compare-and-set, again on conflict; it is in the artifact store, too, then.

        `change` alters the record in place and may be called several times. The status may only move along the table of
        `shared.state_machine`; a terminal record never changes.

        Args:
            token: refuse unless it is the live attempt's token.

        Raises:
            JobNotFound
            Fenced: `token` is not the live one.
            IllegalTransition: `change` moved the status where it may not go.
        """
        for _ in range(MAX_CONFLICTS):
            with cast("Any", self.redis.pipeline()) as pipeline:
                pipeline.watch(job_key(job_id))
                values = pipeline.hmget(job_key(job_id), FIELDS)
                if values[0] is None:
                    pipeline.reset()
                    self.get(job_id)
                    continue
                before, record = record_of(values), record_of(values)
                if token is not None and record.token != token:
                    raise Fenced(job_id)
                change(record)
                check_transition(before.status, record.status)
                if before.status in TERMINAL or record == before:
                    return before
                _stamp(record, before.status)
                try:
                    answer = self._write(pipeline, record, before)
                except WatchError:
                    continue
            self._publish(record, answer)
            return record
        raise InternalError(f"the record of {job_id} changed {MAX_CONFLICTS} times while it was being written")

    def delete(self, record: JobRecord) -> None:
        """Forget a job that has ended: its record, events and logs, here and in the artifact store, for good."""
        if record.retry_of is not None:  # that one may be tried again
            self.archive.unlink_retry(record.retry_of, record.id)
            self.redis.hdel(job_key(record.retry_of), "retried_as")
        self.redis.set(_deleted_key(record.id), "1", ex=DELETED_KEPT_S)
        self.archive.forget(record.id)
        pipeline = self.redis.pipeline()
        pipeline.delete(job_key(record.id), run_key(record.id), f"{PREFIX}backoff:{record.id}")
        pipeline.zrem(JOBS, record.id)
        pipeline.zrem(UNKEPT, record.id)
        pipeline.execute()
        self.event_log.forget(record.id)

    def keep_unkept(self, limit: int, within_s: float) -> None:
        """Write to the artifact store what it could not take before; the rest later, where that takes long."""
        end = time.monotonic() + within_s
        for record in self.get_many(cast("list[str]", self.redis.zrange(UNKEPT, 0, limit - 1))):
            self._keep(record)
            if time.monotonic() > end:
                return

    def owner(self, job_id: str) -> str | None:
        """Token of the attempt that the job belongs to, alive or not; None when it belongs to none.

        Raises:
            JobNotFound
        """
        token = cast("str | None", self.redis.hget(job_key(job_id), "token"))
        return (self.get(job_id).token if token is None else token) or None

    def _insert(self, record: JobRecord) -> bool:
        key = job_key(record.id)
        with cast("Any", self.redis.pipeline()) as pipeline:
            pipeline.watch(key, _deleted_key(record.id))
            if pipeline.exists(key, _deleted_key(record.id)):
                return False
            pipeline.multi()
            pipeline.hset(key, mapping=_hash_fields(record))
            if record.retried_as is not None:
                pipeline.hset(key, "retried_as", record.retried_as)
            pipeline.zadd(JOBS, {record.id: record.created_at.timestamp()})
            if record.status in ACTIVE:
                pipeline.sadd(status_key(record.status), record.id)
            else:
                pipeline.hset(ENDED, record.id, "")
            try:
                pipeline.execute()
            except WatchError:
                return False
        return True

    def _write(self, pipeline: Any, record: JobRecord, before: JobRecord) -> str | None:
        """Write a version together with the event that tells of it; what that answered, if there was something to tell.

        Whoever reads the status reads its event, too: no reader of a stream is told of an end that it has not seen.
        """
        pipeline.multi()
        pipeline.hset(job_key(record.id), mapping=_hash_fields(record))
        if all(stage.status != StageStatus.RUNNING for stage in record.stages):
            pipeline.hdel(job_key(record.id), "progress")
        if record.status != before.status:
            pipeline.srem(status_key(before.status), record.id)
            if record.status in ACTIVE:
                pipeline.sadd(status_key(record.status), record.id)
            else:
                pipeline.hset(ENDED, record.id, record.model_dump_json())
        pipeline.zadd(UNKEPT, {record.id: record.version})
        _ends(record, before).send(pipeline)
        if (record.status, record.attempt) == (before.status, before.attempt):
            pipeline.execute()
            return None
        self.event_log.append_with(pipeline, record.id, "job", _change_event(record))
        return cast("str", pipeline.execute()[-1])

    def _publish(self, record: JobRecord, event: str | None) -> None:
        """Say elsewhere what is true since it was written. A Redis that goes away here takes nothing of that back."""
        try:
            self._keep(record)
            if event is not None:
                self.event_log.follow_up(event, record.id, "job", _change_event(record))
        except RedisError as error:
            log.warning("job %s: version %d was written, then Redis went away: %s", record.id, record.version, error)

    def _keep(self, record: JobRecord) -> None:
        """Write a version to the artifact store. A job must go on when the store is full or away, too: then Redis alone
        knows of it until the reconciler has written it."""
        try:
            self.archive.keep(record)
            self.redis.eval(KEPT, 1, UNKEPT, record.id, record.version)
        except ArtifactStoreError as error:
            log.warning("job %s: version %d is not in the artifact store yet: %s", record.id, record.version, error)


def _deleted_key(job_id: str) -> str:
    return f"{PREFIX}deleted:{job_id}"


def _stamp(record: JobRecord, before: JobStatus) -> None:
    record.version += 1
    record.updated_at = max(now(), record.updated_at)
    if record.status == JobStatus.RUNNING and record.started_at is None:
        record.started_at = record.updated_at
    if record.status in TERMINAL and before not in TERMINAL:
        record.finished_at = record.updated_at
        record.token = None


def _ends(record: JobRecord, before: JobRecord) -> Tally:
    """What a change adds to the figures: an attempt that ended, a job that ended."""
    tally = Tally()
    running = {attempt.number for attempt in before.attempts if attempt.ended_at is None}
    for attempt in record.attempts:
        if attempt.number in running and attempt.ended_at is not None:
            tally.count(ATTEMPTS_ENDED, [attempt.reason or ""])
    if record.status in TERMINAL:
        tally.count(JOBS_ENDED, [record.status, record.status_reason or ""])
    return tally


def _change_event(record: JobRecord) -> dict[str, Any]:
    return {
        "status": record.status,
        "reason": record.status_reason,
        "message": record.status_message,
        "attempt": record.attempt,
    }


def _hash_fields(record: JobRecord) -> dict[Any, Any]:
    return {
        "record": record.model_dump_json(),
        "version": record.version,
        "token": record.token or "",
        "status": record.status.value,
        "preset": record.spec.preset,
        "name": record.spec.name or "",
        "metadata": json.dumps(record.spec.metadata),
    }
