"""Changes of the whole service: `/v1/events`, for pages that show it.

Order: as they happened. No filters. Paging: `limit` and `after`, the `event_id` of the last change seen.
"""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from services.gateway.fleet_events import JobChange
from services.gateway.routers.events import EVENT_ID
from services.gateway.sse import described, event_stream, wants_stream
from services.gateway.streams import StreamsDep
from services.gateway.wire import Page

router = APIRouter(prefix="/v1/events", tags=["fleet"])
CHANGE = {"id": "job_06f2k8m3q0000000000a", "event_id": "1769860800000-0", "status": "running", "percent": 52.0}


@router.get("", response_model=Page[JobChange], responses=described("job", "1769860800000-0", CHANGE))
async def list_changes(
    request: Request,
    response: Response,
    streams: StreamsDep,
    after: Annotated[str | None, Query(pattern=EVENT_ID, description="`event_id` of the last change seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Changes on one page.")] = 100,
    last_event_id: Annotated[
        str | None, Header(pattern=EVENT_ID, description="Id of the last change that a stream has sent.")
    ] = None,
) -> Page[JobChange] | Response:
    """Tell which jobs have changed, as they are now; about the latest 10,000 changes are kept.

    A stream (`Accept: text/event-stream`) sends `job` for a job that changed, `fleet` first and whenever workers or
    GPUs change, and `reset` where changes may be missing: whoever shows lists reads them again then. It has no end.
    """
    if wants_stream(request.headers):
        return event_stream(request, streams.fleet.follow(last_event_id or after))
    changes, has_more = await streams.fleet.page(after, limit)
    response.headers["Vary"] = "Accept"
    return Page(data=changes, has_more=has_more)
