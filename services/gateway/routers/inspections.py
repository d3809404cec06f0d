"""Inspections: `POST /v1/datasets/{id}/inspect`, a dry run of a dataset without a job.

An inspection takes as long as reading the dataset takes: an answer comes after `wait_s` at the latest, and the same
request sent again joins the one that runs, or gets what is stored. No paging, no filters.
"""

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from services.gateway.bodies import DocumentRoute, read_json_object
from services.gateway.deps import Backend, BackendDep
from services.gateway.examples import INSPECTION_BODY
from services.gateway.inspection.documents import (
    Inspection,
    InspectionBody,
    InspectionProgress,
    InspectionRequest,
    InspectionRunning,
)
from services.gateway.inspection.request import complete_request, request_key
from services.gateway.problems import not_found
from shared.ids import is_id

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=DocumentRoute)
DEFAULT_WAIT_S = 20.0
POLL_S = 0.2


@router.post(
    "/{dataset_id}/inspect",
    responses={
        202: {"model": InspectionRunning, "description": "It still runs: send the same request again."},
        429: {"description": "Too many inspections wait"},
    },
    openapi_extra={"requestBody": INSPECTION_BODY},
)
async def inspect_dataset(
    dataset_id: Annotated[str, Path()],
    request: Request,
    response: Response,
    backend: BackendDep,
    wait_s: Annotated[
        float | None, Query(ge=0, le=60, description="Seconds to wait for the end; 20 if absent.")
    ] = None,
) -> Inspection | InspectionRunning:
    """Show what a job would keep, reject and learn of a dataset: counts, rejects by reason, token lengths, samples.

    200 when it ends within `wait_s`; else 202 with its progress, and the same request joins it.
    """
    body = InspectionBody.model_validate(await read_json_object(request, "an inspection request", optional=True))
    asked = await run_in_threadpool(_complete, backend, dataset_id, body)
    seconds = next(value for value in (wait_s, body.wait_s, DEFAULT_WAIT_S) if value is not None)
    found = await _await(backend, asked, seconds)
    if isinstance(found, Inspection):
        return found
    response.status_code = 202
    response.headers["Retry-After"] = "1"
    return InspectionRunning(key=request_key(asked), dataset=dataset_id, progress=found)


def _complete(backend: Backend, dataset_id: str, body: InspectionBody) -> InspectionRequest:
    if not is_id(dataset_id, "ds") or not backend.artifacts.exists(f"datasets/{dataset_id}/dataset.json"):
        raise not_found("dataset", dataset_id)
    return complete_request(dataset_id, body, backend.settings.verifier_url)


async def _await(backend: Backend, request: InspectionRequest, seconds: float) -> Inspection | InspectionProgress:
    end = time.monotonic() + seconds
    while True:
        found = await run_in_threadpool(backend.inspections.look, request)
        left = end - time.monotonic()
        if isinstance(found, Inspection) or left <= 0:
            return found
        await asyncio.sleep(min(POLL_S, left))
