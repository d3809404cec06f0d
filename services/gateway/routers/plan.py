"""Plans: `POST /v1/jobs/plan`, what a job document would need and what stands against it. Nothing is started."""

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from services.gateway import planning
from services.gateway.bodies import DocumentRoute, read_json_object
from services.gateway.deps import BackendDep
from services.gateway.examples import JOB_BODY
from shared.schemas.plan import Plan

router = APIRouter(prefix="/v1/jobs/plan", tags=["jobs"], route_class=DocumentRoute)


@router.post("", openapi_extra={"requestBody": JOB_BODY})
async def plan_job(request: Request, backend: BackendDep) -> Plan:
    """Plan a job. A document with problems is answered with all of them, and with the figures that can be told."""
    document = await read_json_object(request)
    return await run_in_threadpool(planning.plan_job, backend, document)
