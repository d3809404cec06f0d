"""Pages of the list of jobs. The list can be long: records are read only for what is shown."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from starlette.datastructures import QueryParams

from services.gateway.paging import unknown_after
from services.gateway.problems import Problem
from services.gateway.rebuild import Rebuilder
from shared.job_lists import JobLabels
from shared.job_store import JobNotFound, JobStore
from shared.queue import JobQueue
from shared.schemas.job import JobRecord, JobStatus

SCAN = 1000
METADATA = re.compile(r"metadata\[(.{1,64})\]", re.DOTALL)
MAX_PAIRS = 16
REBUILD_WAIT_S = 3.0


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a list has; what is None or empty does not matter."""

    status: JobStatus | None = None
    preset: str | None = None
    name: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_after: datetime | None = None
    created_before: datetime | None = None

    @property
    def reads_labels(self) -> bool:
        """Whether anything but the time decides."""
        return bool(self.status or self.preset or self.name or self.metadata)

    def takes(self, labels: JobLabels) -> bool:
        """Whether a job with these labels is in the list, as far as they tell."""
        return (
            self.status in (None, labels.status)
            and self.preset in (None, labels.preset)
            and self.name in (None, labels.name)
            and self.metadata.items() <= labels.metadata.items()
        )


def read_metadata_filter(query: QueryParams) -> dict[str, str]:
    """The pairs of `metadata[KEY]=VALUE` in a query.

    Raises:
        Problem: 422, one is not written so, or stands there twice.
    """
    pairs: dict[str, str] = {}
    for name, value in query.multi_items():
        if not name.startswith("metadata"):
            continue
        found = METADATA.fullmatch(name)
        if found is None:
            raise _bad_metadata(name, "a filter by metadata is written metadata[KEY]=VALUE")
        if found[1] in pairs:
            raise _bad_metadata(name, f"the key {found[1]!r} stands there twice; a job has one value of each key")
        pairs[found[1]] = value
    if len(pairs) > MAX_PAIRS:
        raise _bad_metadata("metadata", f"a job has at most {MAX_PAIRS} pairs of metadata")
    return pairs


def job_page(jobs: JobStore, after: str | None, limit: int, wanted: JobFilter) -> tuple[list[JobRecord], bool]:
    """At most `limit` jobs that follow `after` and match, newest first, and whether more do.

    Raises:
        Problem: 422, there is no job `after`.
    """
    try:
        ids = _matching(jobs, after, limit + 1, wanted)
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


def _matching(jobs: JobStore, after: str | None, count: int, wanted: JobFilter) -> list[str]:
    times = {"created_after": wanted.created_after, "created_before": wanted.created_before}
    if not wanted.reads_labels:
        return jobs.list_ids(after, count, **times)
    found: list[str] = []
    while len(found) < count and (ids := jobs.list_ids(after, SCAN, **times)):
        found += [job_id for job_id, labels in zip(ids, jobs.labels(ids), strict=True) if wanted.takes(labels)]
        after = ids[-1]
    return found[:count]


def _bad_metadata(name: str, message: str) -> Problem:
    pointer = "/" + name.replace("~", "~0").replace("/", "~1")
    return Problem(422, message, errors=[{"source": "query", "pointer": pointer, "message": message}])
