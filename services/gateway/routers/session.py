"""The page's session: `GET /login` shows a form, `POST /session` takes a key and sets a cookie, `DELETE` ends it."""

from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader
from starlette.concurrency import run_in_threadpool

from services.gateway.access.guard import unauthorized
from services.gateway.access.sessions import COOKIE, LIFE_S
from services.gateway.bodies import drain
from services.gateway.deps import BackendDep
from services.gateway.problems import Problem

router = APIRouter(include_in_schema=False)
MAX_FORM_BYTES = 4096
FORM = "application/x-www-form-urlencoded"
POLICY = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'"
TEMPLATES = Environment(loader=FileSystemLoader(Path(__file__).parents[1] / "access"), autoescape=True)


@router.get("/login")
def login(to: Annotated[str, Query(alias="next", max_length=2000)] = "/") -> Response:
    """Show the form that asks for a key."""
    return _form(to, wrong=False)


@router.post("/session")
async def start(request: Request, backend: BackendDep) -> Response:
    """Start a session: the body is a form with `key`, and perhaps `next`, a path of this gateway to go on to."""
    fields = await _fields(request)
    key, to = fields.get("key", "").strip(), fields.get("next", "/")
    key_id = await run_in_threadpool(backend.keys.find, key)
    shows = "text/html" in request.headers.get("accept", "")
    if key_id is None:
        return _form(to, wrong=True) if shows else unauthorized(wrong=True)
    token = await run_in_threadpool(backend.sessions.start, key_id)
    response = RedirectResponse(_own_path(to), 303) if shows else Response(status_code=204)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token, max_age=LIFE_S, path="/", secure=secure, httponly=True, samesite="strict")
    return response


@router.delete("/session", status_code=204)
def end(request: Request, backend: BackendDep) -> Response:
    """End the session of the request's cookie, if there is one."""
    if token := request.cookies.get(COOKIE):
        backend.sessions.end(token)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


def _form(to: str, *, wrong: bool) -> HTMLResponse:
    page = TEMPLATES.get_template("login.html").render(next=_own_path(to), wrong=wrong)
    headers = {"Cache-Control": "no-store", "Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}
    return HTMLResponse(page, 401 if wrong else 200, headers)


def _own_path(to: str) -> str:
    """A path of this gateway; nobody is led elsewhere by a link to the form."""
    own = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
    return to if own else "/"


async def _fields(request: Request) -> dict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Problem(422, f"the body must be a form ({FORM}) with the field `key`")
    content = bytearray()
    stream = request.stream()
    async for chunk in stream:
        content += chunk
        if len(content) > MAX_FORM_BYTES:
            await drain(stream)
            raise Problem(413, f"the form may have {MAX_FORM_BYTES} bytes")
    try:
        fields = parse_qs(content.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        raise Problem(422, "the form may have ten fields; `key` and `next` are read") from None
    return {name: values[-1] for name, values in fields.items()}
