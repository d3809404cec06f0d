"""Jobs: create, list, show, pause, resume, cancel, retry, delete below `/v1/jobs`.

Order: newest first. Filters of the list: `status`, `preset`, `name`, `metadata[KEY]`,
`created_after`, `created_before`. Paging: `limit` and `after` (the id of the last entry).
"""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from services.gateway.bodies import DocumentRoute, read_json_object
from services.gateway.deps import After, BackendDep, JobDep, Limit, Moment
from services.gateway.examples import JOB_BODY, METADATA_PARAMETER
from services.gateway.job_actions import act, remove
from services.gateway.job_admission import admit, retry
from services.gateway.job_listing import JobFilter, job_page, positions, read_metadata_filter, require_complete
from services.gateway.job_view import JobView, job_view, show_job
from services.gateway.registry.drafts import DraftRegistry
from services.gateway.wire import DeletedView, DraftView, Page, draft_view
from shared.schemas.job import JobStatus, UserAction

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=DocumentRoute)
NOT_NOW: dict[int | str, dict[str, Any]] = {409: {"description": "The job's status does not allow it"}}
LOCATION = {"Location": {"description": "Where the job is.", "schema": {"type": "string"}}}
REPLAYED = {"Idempotent-Replayed": "true"}


@router.post(
    "",
    status_code=201,
    response_model=JobView,
    responses={
        200: {"model": JobView, "description": "The first answer again, for an idempotency key that was used"},
        201: {"description": "The new job", "headers": LOCATION},
        409: {"description": "The first request with this idempotency key is under way"},
        429: {"description": "Too many jobs wait"},
    },
    openapi_extra={"requestBody": JOB_BODY},
)
async def create_job(
    request: Request,
    backend: BackendDep,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="One key and one document stand for one job, for a day: the first answer is given again.",
        ),
    ] = None,
) -> Response:
    """Submit a job. 201 for a new one; 200 with the first answer for an idempotency key that stands for one already."""
    document = await read_json_object(request)
    admitted = await run_in_threadpool(admit, backend, document, idempotency_key)
    headers = {"Location": f"/v1/jobs/{admitted.job_id}"} | ({} if admitted.made else REPLAYED)
    return Response(admitted.body, 201 if admitted.made else 200, headers, "application/json")


@router.get("", openapi_extra={"parameters": [METADATA_PARAMETER]})
def list_jobs(
    request: Request,
    backend: BackendDep,
    limit: Limit = 50,
    after: After = None,
    status: Annotated[JobStatus | None, Query(description="Only jobs in this status.")] = None,
    preset: Annotated[str | None, Query(max_length=64, description="Only jobs of this preset.")] = None,
    name: Annotated[str | None, Query(max_length=128, description="Only jobs of this name.")] = None,
    created_after: Annotated[Moment | None, Query(description="Only jobs younger than this.")] = None,
    created_before: Annotated[Moment | None, Query(description="Only jobs older than this.")] = None,
) -> Page[JobView]:
    """List jobs, newest first."""
    metadata = read_metadata_filter(request.query_params)
    require_complete(backend.rebuilder)
    wanted = JobFilter(status, preset, name, metadata, created_after, created_before)
    records, has_more = job_page(backend.jobs, after, limit, wanted)
    places = positions(backend.queue, records)
    views = [job_view(record, places.get(record.id)) for record in records]
    return Page(data=views, has_more=has_more)


@router.get("/{job_id}")
def get_job(record: JobDep, backend: BackendDep) -> JobView:
    """Show a job as it is now."""
    return show_job(backend, record)


@router.post("/{job_id}/pause", responses=NOT_NOW)
def pause_job(record: JobDep, backend: BackendDep) -> JobView:
    """Pause a job. What waits is `paused` at once; what runs is `pausing` until its stage has saved what it has.

    Pausing again is fine and shows the same state. 409 for a job that has ended or is being cancelled.
    """
    return show_job(backend, act(backend, record.id, UserAction.PAUSE))


@router.post("/{job_id}/resume", responses=NOT_NOW)
def resume_job(record: JobDep, backend: BackendDep) -> JobView:
    """Put a paused job back in line; it goes on where it stopped. 409 for a job that is not paused."""
    return show_job(backend, act(backend, record.id, UserAction.RESUME))


@router.post("/{job_id}/cancel", responses=NOT_NOW)
def cancel_job(record: JobDep, backend: BackendDep) -> JobView:
    """Cancel a job. What waits is cancelled at once; what runs is `cancelling` until its processes are gone.

    Cancelling again is fine and shows the same state. 409 for a job that has succeeded or failed.
    """
    return show_job(backend, act(backend, record.id, UserAction.CANCEL))


@router.post(
    "/{job_id}/retry",
    status_code=201,
    responses={
        **NOT_NOW,
        200: {"model": JobView, "description": "The job that does this one again already"},
        201: {"description": "The new job", "headers": LOCATION},
        429: {"description": "Too many jobs wait"},
    },
)
def retry_job(record: JobDep, response: Response, backend: BackendDep) -> JobView:
    """Do a failed or cancelled job again: a new job of the same document (`retry_of`), as ended jobs never change.

    It reuses the stages that were finished and takes over rows and training steps of the one that was not. 200 with the
    job that was made before when it is asked for again. 409 for a job that has not ended badly.
    """
    again, made = retry(backend, record)
    response.headers["Location"] = f"/v1/jobs/{again.id}"
    if not made:
        response.status_code = 200
        response.headers.update(REPLAYED)
    return show_job(backend, again)


@router.get("/{job_id}/draft", responses={409: {"description": "The job has no draft, or not yet"}})
def get_job_draft(record: JobDep, backend: BackendDep) -> DraftView:
    """Show the draft that a job has published. 409 while it has none; 404 when it was deleted."""
    registry = DraftRegistry(backend.artifacts)
    draft = registry.of_job(record)
    return draft_view(draft, registry.tags.by_draft().get(draft.id, []))


@router.delete("/{job_id}", responses=NOT_NOW)
def delete_job(record: JobDep, backend: BackendDep) -> DeletedView:
    """Delete a job that has ended, with its events and logs. 409 before, and while a draft that it made is there.

    What its stages made stays where other jobs use it; the rest is removed by `POST /v1/gc`.
    """
    remove(backend, record)
    return DeletedView(id=record.id, object="job")
