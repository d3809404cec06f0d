"""How long jobs have waited for a worker: new and resumed ones, and those that an attempt has given up."""

from datetime import UTC, datetime

from shared.job_store import JobStore
from shared.schemas.job import JobRecord, JobStatus, UserAction
from shared.state_machine import GOES_ON

OLDEST = 100  # records that are read; a job that was resumed is older than its wait


def oldest_waiting_s(jobs: JobStore) -> float:
    """Seconds that the job has waited which has waited longest, among the `OLDEST` that no attempt has; 0 without any.

    By Redis's clock, which all gateways share.

    Raises:
        RedisError
    """
    # A job that was handed over, given back, or is tried again stays `running`.
    ids = jobs.ids_in(JobStatus.QUEUED) | jobs.without_owner(jobs.ids_in(JobStatus.RUNNING))
    oldest = jobs.get_many(sorted(ids)[:OLDEST])  # ids sort by time of creation
    moments = [_since(record) for record in oldest if record.status in GOES_ON and record.token is None]
    if not moments:
        return 0.0
    seconds, microseconds = jobs.redis.time()
    moment = datetime.fromtimestamp(seconds + microseconds / 1e6, UTC)
    return max(0.0, (moment - min(moments)).total_seconds())


def _since(record: JobRecord) -> datetime:
    """When the job was put in line: when it was made, last resumed, or given up by an attempt."""
    moments = [record.created_at]
    moments += [attempt.ended_at for attempt in record.attempts[-1:] if attempt.ended_at is not None]
    if record.requested == UserAction.RESUME:
        moments.append(record.updated_at)
    return max(moments)
