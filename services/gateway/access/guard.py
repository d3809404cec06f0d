"""The one check of all requests: an ASGI middleware around the whole app, so that no route can be without it.

Where keys are needed, a request brings `Authorization: Bearer KEY`, or the cookie of a session of the page. With the
cookie, what may change something also needs the header `X-Eyrie-Page`: another site's page can make a browser send the
cookie, but not that header. Without keys only requests that arrive at a loopback address, under a name of it, are
answered, unless that was switched off; and never what a browser sends for the page of another site.
"""

from ipaddress import ip_address
from typing import Any
from urllib.parse import quote

from redis.exceptions import RedisError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.access.api_keys import ApiKeys
from services.gateway.access.sessions import COOKIE, Sessions
from services.gateway.problems import answer
from shared.errors import ArtifactStoreError

OPEN = frozenset({"/healthz", "/readyz", "/login", "/session"})
OPEN_BELOW = "/page/"  # scripts and styles of the page: they hold nothing but what is in the repository
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
PAGE_HEADER = "x-eyrie-page"
SET_A_KEY = "set EYRIE_API_KEY_FILE to a file with one"
HOW = "send an API key as `Authorization: Bearer KEY`"


class Guard:
    """Lets those requests through to `app` that may be answered.

    Args:
        needed: whether requests need a key.
        insecure: without keys, answer whatever address a request came to.
    """

    def __init__(self, app: ASGIApp, *, keys: ApiKeys, sessions: Sessions, needed: bool, insecure: bool) -> None:
        self.app, self.keys, self.sessions = app, keys, sessions
        self.needed, self.insecure = needed, insecure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand the request on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope)
        refusal = await self._refusal(request) if self.needed else self._misplaced(request)
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _misplaced(self, request: Request) -> Response | None:
        if request.method not in SAFE and is_foreign(request):
            return answer(403, "another site's page sent this, and a gateway without API keys takes no such request")
        server = str((request.scope.get("server") or ("", None))[0])
        if self.insecure or not is_address(server):  # the latter is a socket in the file system, or a test
            return None
        if not is_loopback(server):
            return answer(403, f"this gateway has no API key and answers on loopback only: {SET_A_KEY}")
        if not is_local_name(request.headers.get("host", "")):
            detail = f"without an API key a gateway is called localhost, or by its loopback address: {SET_A_KEY}"
            return answer(403, detail)
        return None

    async def _refusal(self, request: Request) -> Response | None:
        path, method = request.scope["path"], request.method
        if path in OPEN or path.startswith(OPEN_BELOW):
            return None
        try:
            if "authorization" in request.headers:
                return None if await self._knows(request.headers["authorization"]) else unauthorized(wrong=True)
            token = request.cookies.get(COOKIE)
            if token is not None and await run_in_threadpool(self.sessions.find, token) is not None:
                return None if method in SAFE or PAGE_HEADER in request.headers else _forged()
        except (RedisError, ArtifactStoreError, OSError):
            detail = "whether this may be answered cannot be looked up at the moment: try again"
            return answer(503, detail, headers={"Retry-After": "2"})
        if method == "GET" and (path == "/" or "text/html" in request.headers.get("accept", "")):
            return RedirectResponse("/login" if path == "/" else f"/login?next={quote(path)}", 303)
        return unauthorized(wrong=False)

    async def _knows(self, header: str) -> bool:
        scheme, _, key = header.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            return False
        if self.keys.find_known(key.strip()) is not None:
            return True
        return await run_in_threadpool(self.keys.find, key.strip()) is not None


def unauthorized(*, wrong: bool) -> Response:
    """401, with what to do."""
    challenge = 'Bearer realm="eyrie"' + (', error="invalid_token"' if wrong else "")
    detail = f"this API key is not known, or was deleted: {HOW}" if wrong else f"this needs an API key: {HOW}"
    return answer(401, detail, headers={"WWW-Authenticate": challenge})


def is_address(host: str) -> bool:
    """Tell an IP address from a name."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine only; a name is none."""
    if not is_address(host):
        return False
    found = ip_address(host.partition("%")[0])
    return bool((getattr(found, "ipv4_mapped", None) or found).is_loopback)


def is_local_name(host: str) -> bool:
    """Tell whether a `Host` header names this machine; any other name may be one that a site has turned to it."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = name.lower().removesuffix(".")
    return not name or is_loopback(name) or name == "localhost" or name.endswith(".localhost")


def is_foreign(request: Request) -> bool:
    """Tell whether a browser sent a request for a page that is not this gateway's own; programs say nothing of it."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host")


def describe_security(document: dict[str, Any], *, needed: bool) -> None:
    """Say in an OpenAPI document what the guard asks for."""
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["apiKey"] = {"type": "http", "scheme": "bearer", "description": "A key of `POST /v1/api-keys`."}
    if not needed:
        return
    document["security"] = [{"apiKey": []}]
    for path, operations in document["paths"].items():
        if path in OPEN:
            for operation in operations.values():
                operation["security"] = []


def _forged() -> Response:
    detail = "with a session's cookie this needs the header `X-Eyrie-Page: 1`, which the page sends"
    return answer(403, detail)
