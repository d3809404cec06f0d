"""Calls on jobs and what belongs to one: events, logs, artifacts, rows."""

import uuid
from collections.abc import Mapping, Sequence
from typing import cast

from services.cli.calls.base import PAGE, Calls, JsonObject, address

MOST_LINES = 1_000_000
LINES_PAGE = 1000
POINTS_PAGE = 10_000


class JobCalls(Calls):
    """`/v1/jobs`."""

    def create_job(self, document: JsonObject, idempotency_key: str | None = None) -> JsonObject:
        """Submit a job document; sent again under one key until there is an answer, it makes one job."""
        key = idempotency_key or str(uuid.uuid4())
        return self._object("POST", "/v1/jobs", json=document, headers={"Idempotency-Key": key}, repeat=True)

    def plan_job(self, document: JsonObject) -> JsonObject:
        """What a job document would need, and every problem with it; nothing is started."""
        return self._object("POST", "/v1/jobs/plan", json=document, repeat=True)

    def list_jobs(
        self,
        limit: int = PAGE,
        status: str | None = None,
        preset: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        **filters: str | None,
    ) -> list[JsonObject]:
        """The newest `limit` jobs that match; further filters are `name`, `created_after` and `created_before`."""
        pairs = {f"metadata[{key}]": value for key, value in (metadata or {}).items()}
        return self._list("/v1/jobs", limit, {"status": status, "preset": preset, **filters, **pairs})

    def get_job(self, job_id: str) -> JsonObject:
        """A job as it is now."""
        return self._get(address("jobs", job_id))

    def ask(self, job_id: str, action: str) -> JsonObject:
        """Pause, resume, cancel or retry a job; the job as it is then (for `retry`: the new one)."""
        return self._object("POST", address("jobs", job_id, action), repeat=True)

    def delete_job(self, job_id: str) -> JsonObject:
        """Remove a job that has ended, with its events and logs."""
        return self._delete(address("jobs", job_id))

    def list_events(
        self, job_id: str, after: str | None = None, limit: int = PAGE, types: Sequence[str] = ()
    ) -> list[JsonObject]:
        """The `limit` events that follow the event `after`, oldest first; with `types` only such."""
        return self._list(address("jobs", job_id, "events"), limit, {"after": after, "types": list(types) or None})

    def get_logs(self, job_id: str, stage: str | None = None, tail: int = 1000, attempt: int | None = None) -> str:
        """What the stages' processes wrote."""
        given = {"stage": stage, "attempt": attempt, "tail": tail}
        params = {name: value for name, value in given.items() if value is not None}
        headers = {"Accept": "text/plain"}
        return self._request("GET", address("jobs", job_id, "logs"), params=params, headers=headers, repeat=True).text

    def list_log_lines(
        self, job_id: str, stage: str | None = None, tail: int = 1000, attempt: int | None = None
    ) -> list[JsonObject]:
        """The last `tail` lines of the logs together, each with its `stage` and `attempt`."""
        filters = {"stage": stage, "attempt": attempt, "tail": tail}
        return self._list(address("jobs", job_id, "logs"), MOST_LINES, filters, page_size=LINES_PAGE)

    def list_metrics(
        self,
        job_id: str,
        limit: int = PAGE,
        *,
        stage: str | None = None,
        names: Sequence[str] = (),
        max_points: int | None = None,
    ) -> list[JsonObject]:
        """What the stages measured, by step: at most `max_points`, evenly thinned."""
        filters = {"stage": stage, "name": list(names) or None, "max_points": max_points}
        return self._list(address("jobs", job_id, "metrics"), limit, filters, page_size=POINTS_PAGE)

    def list_checkpoints(self, job_id: str, limit: int = PAGE) -> list[JsonObject]:
        """The checkpoints of a job's training."""
        return self._list(address("jobs", job_id, "checkpoints"), limit)

    def list_artifacts(self, job_id: str, stage: str | None = None) -> list[JsonObject]:
        """Files of the job's finished stages, or of one."""
        params = {"stage": stage} if stage else {}
        return cast("list[JsonObject]", self._get(address("jobs", job_id, "artifacts"), params=params)["data"])

    def list_rows(self, job_id: str, limit: int = PAGE, split: str | None = None) -> list[JsonObject]:
        """The first `limit` rows of a job."""
        return self._list(address("jobs", job_id, "rows"), limit, {"split": split}, cursor="row_id")

    def get_row(self, job_id: str, row_id: str) -> JsonObject:
        """One row with its mask."""
        return self._get(address("jobs", job_id, "rows", row_id))
