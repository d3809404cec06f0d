"""Reading many job records: lists by time of creation, the labels that lists are filtered by, and indexes by status."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from shared.live_jobs import PREFIX, LiveJobs, job_key
from shared.schemas.job import JobRecord, JobStatus, Progress, StageStatus
from shared.state_machine import ACTIVE

JOBS = f"{PREFIX}jobs"
FIELDS = ["record", "progress", "retried_as"]


class JobNotFound(Exception):
    """There is no job with this id."""


@dataclass(frozen=True)
class JobLabels:
    """What a list can be filtered by; all None for a job that Redis does not have."""

    status: str | None
    preset: str | None
    name: str | None
    metadata: dict[str, str]


class JobLists(LiveJobs):
    """Reads of more than one record."""

    def list_ids(
        self,
        after: str | None = None,
        limit: int = -1,
        *,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> list[str]:
        """Ids of jobs, newest first: all, or `limit` of them that follow the job `after`.

        Args:
            created_after, created_before: only jobs of this time, ends not included.

        Raises:
            JobNotFound: there is no job `after`.
        """
        first, end = 0, None
        if after is not None:
            rank = self.redis.zrevrank(JOBS, after)
            if rank is None:
                raise JobNotFound(after)
            first = int(cast("int", rank)) + 1
        if created_before is not None:
            first = max(first, self.redis.zcount(JOBS, created_before.timestamp(), "+inf"))
        if created_after is not None:
            end = self.redis.zcount(JOBS, f"({created_after.timestamp()}", "+inf")
        if limit >= 0:
            end = first + limit if end is None else min(end, first + limit)
        if end is not None and end <= first:
            return []
        return cast("list[str]", self.redis.zrevrange(JOBS, first, -1 if end is None else end - 1))

    def labels(self, ids: Iterable[str]) -> list[JobLabels]:
        """The labels of each id, without reading the records."""
        pipeline = self.redis.pipeline(transaction=False)
        for job_id in ids:
            pipeline.hmget(job_key(job_id), ["status", "preset", "name", "metadata"])
        return [
            JobLabels(status, preset, name or None, json.loads(metadata or "{}"))
            for status, preset, name, metadata in pipeline.execute()
        ]

    def get_many(self, ids: Iterable[str]) -> Iterator[JobRecord]:
        """Records of those ids that Redis has, in the order given."""
        wanted = list(ids)
        pipeline = self.redis.pipeline(transaction=False)
        for job_id in wanted:
            pipeline.hmget(job_key(job_id), FIELDS)
        for values in pipeline.execute() if wanted else []:
            if values[0] is not None:
                yield record_of(values)

    def ids_in(self, *statuses: JobStatus) -> set[str]:
        """Ids of jobs in statuses that are not terminal."""
        return cast("set[str]", self.redis.sunion([status_key(status) for status in statuses]))

    def without_owner(self, ids: Iterable[str]) -> set[str]:
        """Those of the jobs that belong to no attempt, without reading the records."""
        wanted = list(ids)
        pipeline = self.redis.pipeline(transaction=False)
        for job_id in wanted:
            pipeline.hget(job_key(job_id), "token")
        return {job_id for job_id, token in zip(wanted, pipeline.execute(), strict=True) if not token}

    def active_ids(self) -> list[str]:
        """Ids of jobs that are not in a terminal state, oldest first."""
        return sorted(self.ids_in(*ACTIVE))


def status_key(status: JobStatus) -> str:
    """Where Redis has the ids of jobs in a status."""
    return f"{JOBS}:{status}"


def record_of(values: list[str | None]) -> JobRecord:
    """The record of a hash's `FIELDS`, with what changes beside it: the running stage's progress, and its retry."""
    text, progress, retried_as = values
    record = JobRecord.model_validate_json(text or "")
    record.retried_as = retried_as
    if progress is not None:
        for stage in record.stages:
            if stage.status == StageStatus.RUNNING:
                stage.progress = Progress.model_validate_json(progress)
    return record
