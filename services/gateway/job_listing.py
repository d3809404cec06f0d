"""Pages of the list of jobs. The list can be long: records are read only for what is shown."""

from collections.abc import Sequence

from services.gateway.paging import unknown_after
from services.gateway.problems import Problem
from services.gateway.rebuild import Rebuilder
from shared.job_store import JobNotFound, JobStore
from shared.queue import JobQueue
from shared.schemas.job import JobRecord, JobStatus

SCAN = 1000
REBUILD_WAIT_S = 3.0


def job_page(
    jobs: JobStore, after: str | None, limit: int, status: JobStatus | None, preset: str | None
) -> tuple[list[JobRecord], bool]:
    """At most `limit` jobs that follow `after` and match, newest first, and whether more do.

    Raises:
        Problem: 422, there is no job `after`.
    """
    try:
        ids = _matching(jobs, after, limit + 1, status, preset)
    except JobNotFound:
        raise unknown_after(after or "") from None
    return list(jobs.get_many(ids[:limit])), len(ids) > limit


def require_complete(rebuilder: Rebuilder) -> None:
    """Put back first what an emptied Redis has lost.

    Raises:
        Problem: 503, that takes longer than a person waits.
    """
    if not rebuilder.finish(REBUILD_WAIT_S):
        detail = "the list of jobs is being rebuilt from the artifact store; ask again"
        raise Problem(503, detail, headers={"Retry-After": "5"})


def positions(queue: JobQueue, records: Sequence[JobRecord]) -> dict[str, int]:
    """Places in line of those jobs that wait there."""
    waiting = [record for record in records if record.status == JobStatus.QUEUED]
    places = {record.id: queue.position(record.id, record.attempt) for record in waiting}
    return {job_id: place for job_id, place in places.items() if place is not None}


def _matching(jobs: JobStore, after: str | None, count: int, status: JobStatus | None, preset: str | None) -> list[str]:
    if status is None and preset is None:
        return jobs.list_ids(after, count)
    found: list[str] = []
    while len(found) < count and (ids := jobs.list_ids(after, SCAN)):
        for job_id, (its_status, its_preset) in zip(ids, jobs.labels(ids), strict=True):
            if status in (None, its_status) and preset in (None, its_preset):
                found.append(job_id)
        after = ids[-1]
    return found[:count]
