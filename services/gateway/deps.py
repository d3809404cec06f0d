"""What routes depend on, as `Annotated` aliases; the objects are made once, in `app.create_app`."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request
from pydantic import AwareDatetime, BeforeValidator

from services.gateway.access.api_keys import ApiKeys
from services.gateway.access.sessions import Sessions
from services.gateway.fleet_verifier import FleetVerifier
from services.gateway.idempotency import IdempotencyKeys
from services.gateway.inspection.runs import Inspections
from services.gateway.problems import not_found
from services.gateway.rebuild import Rebuilder
from services.gateway.verifier_probe import VerifierProbe
from services.gateway.webhooks.hosts import AllowedHosts
from shared.artifact_store import LocalArtifactStore
from shared.ids import is_id
from shared.job_store import JobNotFound, JobStore
from shared.queue import JobQueue
from shared.schemas.job import JobRecord
from shared.settings import Settings

RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d")


@dataclass(frozen=True)
class Backend:
    """The stores that one gateway process works with.

    Attributes:
        keys_needed: whether requests need an API key; settled when the gateway starts.
    """

    settings: Settings
    artifacts: LocalArtifactStore
    jobs: JobStore
    queue: JobQueue
    idempotency: IdempotencyKeys
    verifier: FleetVerifier
    probe: VerifierProbe
    inspections: Inspections
    rebuilder: Rebuilder
    keys: ApiKeys
    keys_needed: bool
    sessions: Sessions
    webhook_hosts: AllowedHosts


def get_backend(request: Request) -> Backend:
    """The backend of the app that the request came to."""
    backend: Backend = request.app.state.backend
    return backend


BackendDep = Annotated[Backend, Depends(get_backend)]


def get_job(job_id: Annotated[str, Path(description="Id of a job.")], backend: BackendDep) -> JobRecord:
    """The record of the job in the path.

    Raises:
        Problem: 404 where there is none.
    """
    if not is_id(job_id, "job"):
        raise not_found("job", job_id)
    try:
        return backend.jobs.get(job_id)
    except JobNotFound:
        raise not_found("job", job_id) from None


def _as_rfc3339(value: Any) -> Any:
    """Refuse what pydantic would also take: seconds since 1970, or a date alone."""
    if isinstance(value, str) and not RFC3339.match(value):
        raise ValueError("must be a time such as 2026-01-31T12:00:00Z")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_as_rfc3339)]
JobDep = Annotated[JobRecord, Depends(get_job)]
Limit = Annotated[int, Query(ge=1, le=200, description="Entries on one page.")]
After = Annotated[str | None, Query(max_length=64, description="Id of the last entry of the page before.")]
