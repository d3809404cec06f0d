"""Jobs: create, list, show, pause, resume, cancel, retry, and their events and logs below `/v1/jobs`.

Order: jobs newest first, events oldest first. Filters of the list: `status`, `preset`. Paging: `limit` and `after` (the
id of the last entry), for events too. Logs are text.
"""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.concurrency import run_in_threadpool

from services.gateway.bodies import read_json_object
from services.gateway.deps import After, Backend, BackendDep, JobDep, Limit
from services.gateway.examples import JOB_BODY
from services.gateway.files import job_draft
from services.gateway.job_actions import act
from services.gateway.job_admission import admit, retry
from services.gateway.job_listing import job_page, positions, require_complete
from services.gateway.job_logs import read_logs
from services.gateway.wire import DraftView, EventView, JobView, Page, draft_view, event_view, job_view
from shared.schemas.job import JobRecord, JobStatus, Stage, UserAction

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post("", status_code=201, openapi_extra={"requestBody": JOB_BODY})
async def create_job(
    request: Request,
    response: Response,
    backend: BackendDep,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="One key and one document stand for one job, for a day.",
        ),
    ] = None,
) -> JobView:
    """Submit a job. 201 for a new one; 200 for the one that the idempotency key already stands for."""
    document = await read_json_object(request)
    record, made = await run_in_threadpool(admit, backend, document, idempotency_key)
    _say_which(response, record, made)
    return await run_in_threadpool(_view, backend, record)


@router.get("")
def list_jobs(
    backend: BackendDep,
    limit: Limit = 50,
    after: After = None,
    status: Annotated[JobStatus | None, Query(description="Only jobs in this status.")] = None,
    preset: Annotated[str | None, Query(max_length=64, description="Only jobs of this preset.")] = None,
) -> Page[JobView]:
    """List jobs, newest first."""
    require_complete(backend.rebuilder)
    records, has_more = job_page(backend.jobs, after, limit, status, preset)
    places = positions(backend.queue, records)
    views = [job_view(record, places.get(record.id)) for record in records]
    return Page(data=views, has_more=has_more)


@router.get("/{job_id}")
def get_job(record: JobDep, backend: BackendDep) -> JobView:
    """Show a job as it is now."""
    return _view(backend, record)


@router.post("/{job_id}/pause")
def pause_job(record: JobDep, backend: BackendDep) -> JobView:
    """Pause a job. What waits is `paused` at once; what runs is `pausing` until its stage has saved what it has.

    Pausing again is fine and shows the same state. 409 for a job that has ended or is being cancelled.
    """
    return _view(backend, act(backend, record.id, UserAction.PAUSE))


@router.post("/{job_id}/resume")
def resume_job(record: JobDep, backend: BackendDep) -> JobView:
    """Put a paused job back in line; it goes on where it stopped. 409 for a job that is not paused."""
    return _view(backend, act(backend, record.id, UserAction.RESUME))


@router.post("/{job_id}/cancel")
def cancel_job(record: JobDep, backend: BackendDep) -> JobView:
    """Cancel a job. What waits is cancelled at once; what runs is `cancelling` until its processes are gone.

    Cancelling again is fine and shows the same state. 409 for a job that has succeeded or failed.
    """
    return _view(backend, act(backend, record.id, UserAction.CANCEL))


@router.post("/{job_id}/retry", status_code=201)
def retry_job(record: JobDep, response: Response, backend: BackendDep) -> JobView:
    """Do a failed or cancelled job again: a new job of the same document (`retry_of`), as ended jobs never change.

    It reuses the stages that were finished and takes over rows and training steps of the one that was not. 200 with the
    job that was made before when it is asked for again. 409 for a job that has not ended badly.
    """
    again, made = retry(backend, record)
    _say_which(response, again, made)
    return _view(backend, again)


@router.get("/{job_id}/events")
def list_events(
    record: JobDep,
    backend: BackendDep,
    after: Annotated[
        str | None,
        Query(pattern=r"^\d{1,19}-\d{1,19}$", description="Id of the last event seen."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Page[EventView]:
    """List what happened to a job, oldest first. The stream keeps about the latest 20,000 events."""
    entries = backend.jobs.events(record.id, after or "-", limit + 1)
    views = [event_view(event_id, fields) for event_id, fields in entries]
    return Page(data=views[:limit], has_more=len(views) > limit)


@router.get("/{job_id}/draft")
def get_job_draft(record: JobDep, backend: BackendDep) -> DraftView:
    """Show the draft that a job has published. 409 while it has none."""
    return draft_view(job_draft(backend.artifacts, record))


@router.get("/{job_id}/logs", response_class=PlainTextResponse)
def get_logs(
    record: JobDep,
    backend: BackendDep,
    stage: Annotated[Stage | None, Query(description="One stage; absent: all, in order.")] = None,
    attempt: Annotated[int | None, Query(ge=1, description="Absent: the latest.")] = None,
    tail: Annotated[int, Query(ge=1, le=100_000, description="Last lines of each log.")] = 1000,
) -> PlainTextResponse:
    """Show what the stages' processes wrote, as text."""
    text = read_logs(backend.artifacts, record.id, stage, attempt, tail)
    return PlainTextResponse(text, headers={"X-Content-Type-Options": "nosniff"})


def _view(backend: Backend, record: JobRecord) -> JobView:
    queued = record.status == JobStatus.QUEUED
    return job_view(record, backend.queue.position(record.id, record.attempt) if queued else None)


def _say_which(response: Response, record: JobRecord, made: bool) -> None:
    if not made:
        response.status_code = 200
        response.headers["Idempotent-Replayed"] = "true"
    response.headers["Location"] = f"/v1/jobs/{record.id}"
