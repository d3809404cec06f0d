"""Events of a job: `/v1/jobs/{id}/events`, as pages or, by `Accept`, as server-sent events.

Order: oldest first. Filter: `types`. Paging: `limit` and `after`, the id of the last event seen. A stream goes on after
`Last-Event-ID`, or `after`, and ends with the event `end` when the job has ended.
"""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from services.gateway.deps import BackendDep, JobDep
from services.gateway.job_events import EventView, event_page
from services.gateway.sse import described, event_stream, wants_stream
from services.gateway.streams import StreamsDep
from services.gateway.wire import Page

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
FIRST = "1769860800000-0"
EVENT = {"id": FIRST, "type": "metric", "at": "2026-01-31T12:00:00Z", "data": {"step": 20, "loss": 4.2}}
EVENT_ID = r"^[0-9]{1,19}-[0-9]{1,19}$"


@router.get("/{job_id}/events", response_model=Page[EventView], responses=described("metric", FIRST, EVENT))
async def list_events(
    request: Request,
    response: Response,
    record: JobDep,
    backend: BackendDep,
    streams: StreamsDep,
    after: Annotated[str | None, Query(pattern=EVENT_ID, description="Id of the last event seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Entries on one page.")] = 100,
    types: Annotated[list[str] | None, Query(description="Only events of these types.", max_length=32)] = None,
    last_event_id: Annotated[
        str | None, Header(pattern=EVENT_ID, description="Id of the last event that a stream has sent.")
    ] = None,
) -> Page[EventView] | Response:
    """List what happened to a job, oldest first; as a stream also what is still to happen.

    A stream sends each event with its `id`, its type as `event`, and as `data` the object that a page has. Clients that
    are cut off go on after `Last-Event-ID`: no event is left out or sent twice, whichever gateway answers.
    """
    wanted = frozenset(types or ())
    if wants_stream(request.headers):
        return event_stream(request, streams.events.follow(record.id, last_event_id or after, wanted))
    views, has_more = await run_in_threadpool(event_page, backend.jobs.event_log, record.id, after, limit, wanted)
    response.headers["Vary"] = "Accept"
    return Page(data=views, has_more=has_more)
