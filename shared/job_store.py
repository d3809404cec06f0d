"""Job records in Redis: versioned compare-and-set, progress fenced by token, bounded event streams.

Keys (all below `eyrie:`):
    job:ID         hash: `record` (JSON), `version`, `token`, `status`, `preset`, `progress` (JSON)
    jobs           sorted set of ids by time of creation
    jobs:active    set of ids that are not terminal
    events:ID      stream, at most `EVENTS_KEPT` entries
    run:ID         the token of the live run; expires when its worker falls silent
    gpu:HOST:ID    the token of the run that has the GPU
    stage:S:KEY    the token of the run that computes a stage key; equal jobs wait for it
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from redis import Redis
from redis.exceptions import WatchError

from shared import leases
from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError, InternalError
from shared.ids import new_id
from shared.schemas.job import JobRecord, JobStatus, Progress, now
from shared.schemas.spec import JobSpec
from shared.state_machine import TERMINAL, check_transition

log = logging.getLogger(__name__)
EVENTS_KEPT = 20_000
MAX_CONFLICTS = 64
PREFIX = "eyrie:"

SET_IF_TOKEN = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'progress', ARGV[2])
return 1
"""


class JobNotFound(Exception):
    """There is no job with this id."""


class Fenced(Exception):
    """The attempt that asks is no longer the job's live attempt: it must stop and change nothing."""


class JobStore:
    """All reads and writes of job records. Documents and terminal states are also kept in the artifact store."""

    def __init__(self, redis: "Redis", artifacts: LocalArtifactStore) -> None:
        self.redis = redis
        self.artifacts = artifacts

    def create(self, spec: JobSpec, job_id: str | None = None) -> JobRecord:
        """Store a new job, first in the artifact store, then in Redis."""
        moment = now()
        record = JobRecord(id=job_id or new_id("job"), spec=spec, created_at=moment, updated_at=moment)
        content = record.model_dump_json().encode()
        self.artifacts.create(f"jobs/{record.id}/job.json", content)
        self._insert(record)
        self.append_event(record.id, "job", {"status": record.status})
        return record

    def restore(self, record: JobRecord) -> bool:
        """Put a record back that Redis lost; False when Redis has one."""
        return self._insert(record)

    def get(self, job_id: str) -> JobRecord:
        """Return the record as it is now, with the running stage's progress.

        Raises:
            JobNotFound
        """
        values = cast("list[str | None]", self.redis.hmget(self._key(job_id), ["record", "progress"]))
        if values[0] is None:
            raise JobNotFound(job_id)
        return _with_progress(JobRecord.model_validate_json(values[0]), values[1])

    def list_ids(self, after: str | None = None, limit: int = -1) -> list[str]:
        """Ids of jobs, newest first: all, or `limit` of them that follow the job `after`.

        Raises:
            JobNotFound: there is no job `after`.
        """
        first = 0
        if after is not None:
            rank = self.redis.zrevrank(f"{PREFIX}jobs", after)
            if rank is None:
                raise JobNotFound(after)
            first = int(cast("int", rank)) + 1
        last = first + limit - 1 if limit >= 0 else -1
        return cast("list[str]", self.redis.zrevrange(f"{PREFIX}jobs", first, last))

    def labels(self, ids: Iterable[str]) -> list[tuple[str | None, str | None]]:
        """Status and preset of each id, without reading the records."""
        pipeline = self.redis.pipeline(transaction=False)
        for job_id in ids:
            pipeline.hmget(self._key(job_id), ["status", "preset"])
        return [(status, preset) for status, preset in pipeline.execute()]

    def get_many(self, ids: Iterable[str]) -> Iterator[JobRecord]:
        """Records of those ids that exist, in the order given."""
        wanted = list(ids)
        pipeline = self.redis.pipeline(transaction=False)
        for job_id in wanted:
            pipeline.hmget(self._key(job_id), ["record", "progress"])
        for record, progress in pipeline.execute() if wanted else []:
            if record is not None:
                yield _with_progress(JobRecord.model_validate_json(record), progress)

    def active_ids(self) -> list[str]:
        """Ids of jobs that are not in a terminal state, oldest first."""
        return sorted(cast("set[str]", self.redis.smembers(f"{PREFIX}jobs:active")))

    def update(self, job_id: str, change: Callable[[JobRecord], None], *, token: str | None = None) -> JobRecord:
        """Apply `change` to the record by compare-and-set, again on conflict.

        `change` alters the record in place and may be called several times. The status may only move along the table of
        `shared.state_machine`; a terminal record never changes.

        Args:
            token: refuse unless it is the live attempt's token.

        Raises:
            JobNotFound
            Fenced: `token` is not the live one.
            IllegalTransition: `change` moved the status where it may not go.
        """
        key = self._key(job_id)
        for _ in range(MAX_CONFLICTS):
            with cast("Any", self.redis.pipeline()) as pipeline:
                pipeline.watch(key)
                text = cast("str | None", pipeline.hget(key, "record"))
                if text is None:
                    raise JobNotFound(job_id)
                record = JobRecord.model_validate_json(text)
                if token is not None and record.token != token:
                    raise Fenced(job_id)
                before = record.status
                change(record)
                check_transition(before, record.status)
                if before in TERMINAL:
                    return JobRecord.model_validate_json(text)
                self._stamp(record, before)
                kept = record.status in TERMINAL and self._keep_terminal(record)
                try:
                    self._write(pipeline, record)
                except WatchError:
                    continue
            if record.status in TERMINAL and not kept:  # what a lost race left there
                self.artifacts.write(_terminal_key(job_id), record.model_dump_json().encode())
            if record.status != before:
                self.append_event(
                    job_id, "job", {"status": record.status, "reason": record.status_reason, "attempt": record.attempt}
                )
            return record
        raise InternalError(f"the record of {job_id} changed {MAX_CONFLICTS} times while it was being written")

    def set_progress(self, job_id: str, token: str, progress: Progress) -> bool:
        """Show how far the running stage is; False when `token` is no longer the live one."""
        return bool(self.redis.eval(SET_IF_TOKEN, 1, self._key(job_id), token, progress.model_dump_json()))

    def acquire_run(self, job_id: str, token: str, lease_s: int) -> bool:
        """Become the job's one live run, or say that it still lives; False while another one does."""
        return leases.acquire(self.redis, [self._run_key(job_id)], token, lease_s)

    def acquire_keys(self, keys: list[str], token: str, lease_s: int) -> bool:
        """Lease `gpu:...` and `stage:...` keys for a run; all of them or none."""
        return leases.acquire(self.redis, [PREFIX + key for key in keys], token, lease_s)

    def release_keys(self, keys: list[str], token: str) -> None:
        """Give leased keys back."""
        for key in keys:
            leases.release(self.redis, PREFIX + key, token)

    def release_run(self, job_id: str, token: str) -> None:
        """Say that the run has ended."""
        leases.release(self.redis, self._run_key(job_id), token)

    def run_token(self, job_id: str) -> str | None:
        """Token of the live run, if there is one."""
        return cast("str | None", self.redis.get(self._run_key(job_id)))

    def append_event(self, job_id: str, kind: str, data: dict[str, Any]) -> None:
        """Add an event to the job's stream."""
        fields: dict[Any, Any] = {"type": kind, "at": now().isoformat(), "data": json.dumps(data, default=str)}
        self.redis.xadd(f"{PREFIX}events:{job_id}", fields, maxlen=EVENTS_KEPT, approximate=True)

    def events(self, job_id: str, after: str = "-", limit: int = 1000) -> list[tuple[str, dict[str, Any]]]:
        """Events after the id `after` (`-`: from the first), oldest first."""
        start = after if after == "-" else f"({after}"
        entries = cast(
            "list[tuple[str, dict[str, str]]]", self.redis.xrange(f"{PREFIX}events:{job_id}", start, "+", limit)
        )
        return [(i, {"type": e["type"], "at": e["at"], "data": json.loads(e["data"])}) for i, e in entries]

    def _insert(self, record: JobRecord) -> bool:
        key = self._key(record.id)
        with cast("Any", self.redis.pipeline()) as pipeline:
            pipeline.watch(key)
            if pipeline.exists(key):
                return False
            pipeline.multi()
            pipeline.hset(key, mapping=_hash_fields(record))
            pipeline.zadd(f"{PREFIX}jobs", {record.id: record.created_at.timestamp()})
            if record.status not in TERMINAL:
                pipeline.sadd(f"{PREFIX}jobs:active", record.id)
            try:
                pipeline.execute()
            except WatchError:
                return False
        return True

    def _write(self, pipeline: Any, record: JobRecord) -> None:
        pipeline.multi()
        pipeline.hset(self._key(record.id), mapping=_hash_fields(record))
        if all(stage.status != "running" for stage in record.stages):
            pipeline.hdel(self._key(record.id), "progress")
        if record.status in TERMINAL:
            pipeline.srem(f"{PREFIX}jobs:active", record.id)
        pipeline.execute()

    def _stamp(self, record: JobRecord, before: JobStatus) -> None:
        record.version += 1
        record.updated_at = max(now(), record.updated_at)
        if record.status == JobStatus.RUNNING and record.started_at is None:
            record.started_at = record.updated_at
        if record.status in TERMINAL and before not in TERMINAL:
            record.finished_at = record.updated_at
            record.token = None

    def _keep_terminal(self, record: JobRecord) -> bool:
        """Add a terminal record to the artifact store. A job must end there too when the store is full or away: then
        Redis alone knows of it."""
        try:
            return self.artifacts.create(_terminal_key(record.id), record.model_dump_json().encode())
        except ArtifactStoreError as error:
            log.warning("job %s: its end was not kept in the artifact store: %s", record.id, error)
            return True

    def _key(self, job_id: str) -> str:
        return f"{PREFIX}job:{job_id}"

    def _run_key(self, job_id: str) -> str:
        return f"{PREFIX}run:{job_id}"


def _terminal_key(job_id: str) -> str:
    return f"jobs/{job_id}/terminal.json"


def _hash_fields(record: JobRecord) -> dict[Any, Any]:
    return {
        "record": record.model_dump_json(),
        "version": record.version,
        "token": record.token or "",
        "status": record.status.value,
        "preset": record.spec.preset,
    }


def _with_progress(record: JobRecord, progress: str | None) -> JobRecord:
    if progress is not None:
        for stage in record.stages:
            if stage.status == "running":
                stage.progress = Progress.model_validate_json(progress)
    return record
