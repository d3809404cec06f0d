"""Server-sent events: who wants them, and the response that sends them.

A stream is an async generator that reads the next few entries when the client has taken the last ones: a slow reader
costs no memory. The response sends keep-alive comments beside it, and ends when the gateway is told to stop.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.datastructures import Headers

from services.gateway.head_requests import is_head

Messages = AsyncGenerator[ServerSentEvent, None]
MEDIA_TYPE = "text/event-stream"
RECONNECT_MS = 2000


def described(kind: str, event_id: str, data: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """What the API's description says of a route that answers with a page or a stream, whose events look like this."""
    example = message(kind, data, event_id).encode().decode().replace("\r\n", "\n")
    schema = {"type": "string", "description": "Server-sent events."}
    return {
        200: {
            "content": {MEDIA_TYPE: {"schema": schema, "example": example}},
            "description": "A page of the list or, for `Accept: text/event-stream`, the list as it grows.",
        }
    }


def preferred(headers: Headers, *offered: str) -> str:
    """Which of the media types that are offered the client wants most; the first one where it does not care."""
    ranks = _ranks(headers.get("accept", "*/*"))

    def rank(media_type: str) -> float:
        whole = f"{media_type.partition('/')[0]}/*"
        return next((ranks[name] for name in (media_type, whole, "*/*") if name in ranks), 0.0)

    return max(offered, key=rank)


def wants_stream(headers: Headers) -> bool:
    """Whether the client prefers server-sent events to a page."""
    return preferred(headers, "application/json", MEDIA_TYPE) == MEDIA_TYPE


def message(kind: str, data: dict[str, Any] | str, event_id: str | None = None) -> ServerSentEvent:
    """One event; without an id the client's position stays where it is."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return ServerSentEvent(text, event=kind, id=event_id)


def event_stream(request: Request, events: Messages) -> Response:
    """The response to a client that wants server-sent events."""
    headers = {"Vary": "Accept", "X-Content-Type-Options": "nosniff"}
    if is_head(request):
        return Response(media_type=MEDIA_TYPE, headers=headers)
    keep_alive_s: float = request.app.state.backend.settings.sse_keep_alive_s
    return EventSourceResponse(
        _opened(events),
        ping=keep_alive_s,
        ping_message_factory=lambda: ServerSentEvent(comment="keep-alive"),
        sep="\n",
        headers=headers,
    )


async def _opened(events: Messages) -> Messages:
    """Say at once that the stream is open, and how soon to come back when it breaks."""
    yield ServerSentEvent(comment="open", retry=RECONNECT_MS)
    async with aclosing(events):  # whatever ends the response ends the stream, too, and what it watches
        async for event in events:
            yield event


def _ranks(accept: str) -> dict[str, float]:
    """Weights by media type."""
    ranks = {}
    for part in accept.split(","):
        name, *parameters = (word.strip() for word in part.split(";"))
        weights = [word[2:] for word in parameters if word.startswith("q=")]
        try:
            ranks[name.lower()] = float(weights[0]) if weights else 1.0
        except ValueError:
            ranks[name.lower()] = 0.0
    return ranks
