"""What belongs to a job beside its record: leases, back-off and progress, all in Redis, and its events.

Keys (all below `eyrie:`; `shared.event_log` has those of events):
    run:ID         the token of the live run; expires when its worker falls silent
    jobs:ended     hash: records (JSON) by id of jobs whose end the webhooks have not been told yet
    backoff:ID     there while the next attempt has to wait
    stage:S:KEY    the token of the run that computes a stage key; equal jobs wait for it
"""

from itertools import islice
from typing import Any, cast

from redis import Redis

from shared import leases
from shared.artifact_store import LocalArtifactStore
from shared.event_archive import START, Entry
from shared.event_log import CHANGES, CHANGES_KEPT, PREFIX, EventLog
from shared.schemas.job import Progress

__all__ = ["ENDED", "PREFIX", "LiveJobs", "job_key", "run_key"]

ENDED = f"{PREFIX}jobs:ended"

SET_IF_TOKEN = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'progress', ARGV[2])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'job', ARGV[3])
return 1
"""


class LiveJobs:
    """Signals between those who run jobs and those who watch them. What a fenced attempt sends goes nowhere."""

    def __init__(self, redis: Redis, artifacts: LocalArtifactStore) -> None:
        self.redis = redis
        self.event_log = EventLog(redis, artifacts)

    def set_progress(self, job_id: str, token: str, progress: Progress) -> bool:
        """Show how far the running stage is; False when `token` is no longer the live one."""
        values = (token, progress.model_dump_json(), job_id, CHANGES_KEPT)
        return bool(self.redis.eval(SET_IF_TOKEN, 2, job_key(job_id), CHANGES, *values))

    def acquire_run(self, job_id: str, token: str, lease_s: int) -> bool:
        """Become the job's one live run, or say that it still lives; False while another one does."""
        return leases.acquire(self.redis, [run_key(job_id)], token, lease_s)

    def acquire_keys(self, keys: list[str], token: str, lease_s: int) -> bool:
        """Lease further keys, such as `stage:...`, for a run; all of them or none."""
        return leases.acquire(self.redis, [PREFIX + key for key in keys], token, lease_s)

    def key_token(self, key: str) -> str | None:
        """Token of the run that has leased a further key, if one has."""
        return cast("str | None", self.redis.get(PREFIX + key))

    def release_keys(self, keys: list[str], token: str) -> None:
        """Give leased keys back."""
        for key in keys:
            leases.release(self.redis, PREFIX + key, token)

    def release_run(self, job_id: str, token: str) -> None:
        """Say that the run has ended."""
        leases.release(self.redis, run_key(job_id), token)

    def run_token(self, job_id: str) -> str | None:
        """Token of the live run, if there is one."""
        return cast("str | None", self.redis.get(run_key(job_id)))

    def back_off(self, job_id: str, seconds: float) -> None:
        """Have the job's next attempt wait."""
        self.redis.set(f"{PREFIX}backoff:{job_id}", "1", px=max(1, int(seconds * 1000)))

    def backs_off(self, job_id: str) -> bool:
        """Tell whether the job's next attempt still has to wait."""
        return bool(self.redis.exists(f"{PREFIX}backoff:{job_id}"))

    def untold_ends(self, limit: int) -> dict[str, str]:
        """Up to `limit` jobs that have ended, with their records (JSON; empty where it has to be asked for)."""
        return dict(islice(self.redis.hscan_iter(ENDED, count=limit), limit))

    def end_was_told(self, job_id: str) -> None:
        """Have the end of a job forgotten: the webhooks know of it."""
        self.redis.hdel(ENDED, job_id)

    def append_event(self, job_id: str, kind: str, data: dict[str, Any], *, token: str | None = None) -> bool:
        """Add an event to the job's stream; False when `token` is given and no longer the live one."""
        return self.event_log.append(job_id, kind, data, token)

    def events(self, job_id: str, after: str = START, limit: int = 1000) -> list[Entry]:
        """Events after the id `after` (by default from the first), oldest first."""
        return self.event_log.read(job_id, after, limit)


def job_key(job_id: str) -> str:
    """Where Redis has a job's record."""
    return f"{PREFIX}job:{job_id}"


def run_key(job_id: str) -> str:
    """Where Redis has the lease of a job's live run."""
    return f"{PREFIX}run:{job_id}"
