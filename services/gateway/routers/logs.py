"""Logs of a job's stages: `/v1/jobs/{id}/logs`, as text, as pages of lines, or as a stream that follows the job.

Order: as the logs were begun. Filters: `stage`, `attempt`. Paging: `limit` and `after`, the id of the last line seen.
"""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.concurrency import run_in_threadpool

from services.gateway.deps import Backend, BackendDep, JobDep
from services.gateway.job_logs import LogFilter, LogLine, Place, first_place, place_after, read_page, read_text
from services.gateway.sse import MEDIA_TYPE, described, event_stream, preferred
from services.gateway.streams import StreamsDep
from services.gateway.wire import Page
from shared.schemas.job import Stage

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
PLAIN, JSON = "text/plain", "application/json"
TEXT_TAIL = 1000
LINE = {"id": "train-1-20480", "stage": "train", "attempt": 1, "line": "step 20 of 400"}
STREAM = described("line", "train-1-20480", LINE)[200]["content"]
PLAIN_TEXT = {"schema": {"type": "string"}, "example": "==> train-1 <==\nstep 20 of 400\n"}


@router.get(
    "/{job_id}/logs",
    response_model=Page[LogLine],
    responses={200: {"content": {**STREAM, PLAIN: PLAIN_TEXT}, "description": "By `Accept`."}},
)
async def get_logs(
    request: Request,
    record: JobDep,
    backend: BackendDep,
    streams: StreamsDep,
    stage: Annotated[Stage | None, Query(description="One stage; absent: all.")] = None,
    attempt: Annotated[
        int | None,
        Query(ge=1, le=10**9, description="One run of the stage. Absent: the latest as text, else all."),
    ] = None,
    tail: Annotated[
        int | None,
        Query(ge=1, le=100_000, description="Only the last lines: as text of each log (1000), else of all together."),
    ] = None,
    follow: Annotated[bool, Query(description="Send lines as they are written, as server-sent events.")] = False,
    after: Annotated[str | None, Query(max_length=64, description="Id of the last line seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=5000, description="Lines on one page.")] = 1000,
    last_event_id: Annotated[
        str | None, Header(max_length=64, description="Id of the last line that a stream has sent.")
    ] = None,
) -> Page[LogLine] | Response:
    """Show what the stages' processes wrote: as text; as a page of lines for `Accept: application/json`; as a stream of
    `line` events for `Accept: text/event-stream` or `follow`, which goes on with later stages until the job ends.

    A line is what a terminal would show of it: of a progress bar, its end. Lines above 64 KiB come in pieces. The last
    line comes when it is whole, or its stage has ended. Clients that are cut off go on after `Last-Event-ID`.
    """
    wanted = LogFilter(stage, attempt)
    kind = MEDIA_TYPE if follow else preferred(request.headers, PLAIN, JSON, MEDIA_TYPE)
    headers = {"Vary": "Accept", "X-Content-Type-Options": "nosniff"}
    if kind == PLAIN:
        text = await run_in_threadpool(read_text, backend.artifacts, record.id, wanted, tail or TEXT_TAIL)
        return PlainTextResponse(text, headers=headers)
    line_id = (last_event_id if kind == MEDIA_TYPE else None) or after
    place = await run_in_threadpool(_place, backend, record.id, wanted, line_id, tail)
    if kind == MEDIA_TYPE:
        return event_stream(request, streams.logs.follow(record, wanted, place))
    lines, has_more = await run_in_threadpool(read_page, backend.artifacts, record, wanted, place, limit)
    return Page(data=lines, has_more=has_more)


def _place(backend: Backend, job_id: str, wanted: LogFilter, line_id: str | None, tail: int | None) -> Place | None:
    """Where to start: behind a line, or at the last lines, or at the first."""
    if line_id:
        return place_after(backend.artifacts, job_id, line_id)
    return first_place(backend.artifacts, job_id, wanted, tail) if tail else None
