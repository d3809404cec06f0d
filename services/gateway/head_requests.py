"""HEAD wherever there is GET (RFC 9110): the same status and headers. The server sends no body for it."""

from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

ASKED = "eyrie.head"


class HeadRequests:
    """Has HEAD answered by what answers GET, but for routes that answer it themselves, as those of files do."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on."""
        if scope["type"] == "http" and scope["method"] == "HEAD" and not _has_own_route(scope):
            scope = {**scope, "method": "GET", ASKED: True}
        await self.app(scope, receive, send)


def is_head(request: Request) -> bool:
    """Whether only the headers are asked for, although the method is GET here: a stream is not begun then."""
    return bool(request.scope.get(ASKED))


def _has_own_route(scope: Scope) -> bool:
    return any(route.matches(scope)[0] == Match.FULL for route in scope["app"].routes)
