"""Retention: `POST /v1/gc` says what nothing refers to any more, or removes it. One look at a time."""

from typing import Annotated

from fastapi import APIRouter, Body
from pydantic import Field

from services.gateway.bodies import DocumentRoute
from services.gateway.deps import BackendDep
from services.gateway.problems import Problem
from shared import leases
from shared.ids import new_id
from shared.live_jobs import PREFIX
from shared.retention import DAY_S, Retention
from shared.schemas.retention import RetentionReport
from shared.schemas.spec import Document

router = APIRouter(prefix="/v1/gc", tags=["retention"], route_class=DocumentRoute)
LEASE_KEY = f"{PREFIX}lease:gc"
LEASE_S = 3600.0


class RetentionRequest(Document):
    """What to do. An empty body is a dry run."""

    apply: bool = Field(False, strict=True, description="Remove what is found; else it is only listed.")
    retention_days: float | None = Field(
        None,
        strict=True,
        ge=0,
        le=36_500,
        description="Keep what is younger; absent: the gateway's `EYRIE_RETENTION_DAYS`.",
    )


@router.post("", responses={409: {"description": "Another clean-up is under way"}})
def collect_garbage(
    backend: BackendDep,
    request: Annotated[RetentionRequest | None, Body(openapi_examples={"remove": {"value": {"apply": True}}})] = None,
) -> RetentionReport:
    """Find, and with `apply` remove, what no job and no draft refers to. 409 while another one is at it."""
    request = request or RetentionRequest()
    days = backend.settings.retention_days if request.retention_days is None else request.retention_days
    retention = Retention(backend.jobs, days * DAY_S)
    if not request.apply:
        return retention.look()
    holder = new_id("gc")
    if not leases.acquire(backend.jobs.redis, [LEASE_KEY], holder, LEASE_S):
        raise Problem(409, "another clean-up is under way; ask again when it has ended", headers={"Retry-After": "30"})
    try:
        return retention.apply()
    finally:
        leases.release(backend.jobs.redis, LEASE_KEY, holder)
