"""Errors at the edge: everything that goes wrong leaves as `application/problem+json` (RFC 9457).

Routers raise `Problem`, or an `EyrieError` of `shared`; libraries raise their own. `install` gives each of them its
answer. Nothing internal leaks: what is unexpected is logged, and the client learns only that it happened.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from shared.errors import ArtifactStoreError, CapacityError, EyrieError, StatusReason, UserError, error_page
from shared.job_lists import JobNotFound
from shared.presets import pointer_errors
from shared.state_machine import ActionRefused
from shared.submission import SubmissionError

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2
TITLES = {
    400: ("bad-request", "The request cannot be read"),
    401: ("unauthorized", "Authentication is needed"),
    403: ("forbidden", "This is not allowed"),
    404: ("not-found", "There is no such thing"),
    405: ("method-not-allowed", "The method is not allowed here"),
    409: ("conflict", "The state does not allow this"),
    413: ("too-large", "The request is too large"),
    416: ("range", "The range does not exist"),
    422: ("invalid", "The input cannot be accepted"),
    412: ("precondition", "It is not the version that was asked for"),
    429: ("capacity", "There is no room for this now"),
    500: ("internal", "Something went wrong inside"),
    503: ("unavailable", "A part of the service is not available"),
}


UNNAMED = ("error", "The request failed")
URN = "urn:eyrie:problem:"
DETAILS = {
    404: "there is nothing at this address; GET /openapi.json lists what there is",
    405: "this address does not take this method; the Allow header lists those that it takes",
}
SHOWN_CHARACTERS = 80
REASONS = {429: StatusReason.CAPACITY, 500: StatusReason.INTERNAL}
SERVICE_PAGE = "docs/operations.md"  # for what is unavailable


class ProblemField(BaseModel):
    """One wrong field."""

    pointer: str = Field(description="JSON pointer (RFC 6901) into the part of the request that `source` names.")
    message: str
    source: str = Field("body", description="body, query, path, header, or job (its record).")


class ProblemDocument(BaseModel):
    """An error as every route answers it (RFC 9457)."""

    type: str = Field(examples=["urn:eyrie:problem:invalid"])
    title: str
    status: int
    detail: str = Field(description="What was wrong, where, and what to do.")
    errors: list[ProblemField] = Field(default_factory=list)
    docs: str = Field(description="Page of the documentation, in the repository.", examples=["docs/errors/capacity.md"])


class Problem(Exception):
    """An error with its status; `detail` says what was wrong and what to do."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors, self.headers = status, detail, errors, headers


def not_found(what: str, name: str) -> Problem:
    """There is no such `what`, which the path names."""
    message = f"there is no {what} {shortened(name)!r}"
    parameter = "path" if what == "file" else f"{what.replace(' ', '_').lower()}_id"
    return Problem(404, message, errors=[{"source": "path", "pointer": f"/{parameter}", "message": message}])


def shortened(name: str) -> str:
    """A name as far as people read it; whoever asks may have sent kilobytes."""
    return name if len(name) <= SHOWN_CHARACTERS else f"{name[: SHOWN_CHARACTERS - 1]}…"


def describe(status: int) -> tuple[str, dict[str, Any]]:
    """The title of a status, and an example of its document."""
    kind, title = TITLES.get(status, UNNAMED)
    fields = [ProblemField(pointer="/train/lr", message="must be at least 0", source="body")] if status == 422 else []
    document = ProblemDocument(
        type=f"{URN}{kind}",
        title=title,
        status=status,
        detail="/train/lr: must be at least 0" if status == 422 else DETAILS.get(status, title),
        errors=fields,
        docs=_page(status, None),
    )
    return title, document.model_dump()


def install(app: FastAPI) -> None:
    """Give every kind of error its answer."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(EyrieError, _on_eyrie_error)
    app.add_exception_handler(JobNotFound, _on_gone_job)
    app.add_exception_handler(ActionRefused, _on_refused_action)
    app.add_exception_handler(ValidationError, _on_invalid_document)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RedisError, _on_redis_error)
    app.add_exception_handler(Exception, _on_unexpected)


def answer(
    status: int,
    detail: str,
    errors: Sequence[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
    reason: StatusReason | None = None,
) -> JSONResponse:
    """A problem document as a response; `reason` decides the page that it leads to."""
    kind, title = TITLES.get(status, UNNAMED)
    document: dict[str, Any] = {
        "type": f"{URN}{kind}",
        "title": title,
        "status": status,
        "detail": detail,
        "errors": [{"source": "body", **error} for error in errors],
        "docs": _page(status, reason),
    }
    return JSONResponse(document, status, dict(headers or {}), media_type=MEDIA_TYPE)


async def _on_problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return answer(error.status, error.detail, error.errors, error.headers)


async def _on_gone_job(_: Request, error: Exception) -> JSONResponse:
    return answer(404, f"there is no job {str(error)!r}; it was deleted just now")


async def _on_refused_action(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ActionRefused)
    return answer(409, str(error), [{"source": "job", "pointer": "/status", "message": error.current.value}])


async def _on_eyrie_error(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, SubmissionError):
        fields = [{"pointer": field.pointer, "message": field.message} for field in error.errors]
        return answer(422, _summary(fields), fields)
    if isinstance(error, UserError):
        pointer = error.where if error.where.startswith("/") else ""
        return answer(422, str(error), [{"pointer": pointer, "message": error.message}])
    if isinstance(error, CapacityError):
        return answer(429, str(error), headers={"Retry-After": str(RETRY_AFTER_S)})
    if isinstance(error, ArtifactStoreError):
        log.error("the artifact store failed: %s", error)
        return answer(503, str(error), headers={"Retry-After": str(RETRY_AFTER_S)}, reason=error.reason)
    log.error("unexpected error", exc_info=error)
    return _unexpected()


async def _on_invalid_document(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ValidationError)
    fields = pointer_errors(error)
    return answer(422, _summary(fields), fields)


async def _on_invalid_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if found[0]["type"] == "json_invalid":
        reason = f"{found[0].get('ctx', {}).get('error', found[0]['msg'])} at character {found[0]['loc'][-1]}"
        return answer(400, f"the body is not JSON: {reason}")
    fields = [
        {
            "source": str(item["loc"][0]),
            "pointer": "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in item["loc"][1:]),
            "message": item["msg"],
        }
        for item in found
    ]
    return answer(422, _summary(fields), fields)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = DETAILS.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    if error.status_code == 405:  # Starlette names the methods of the first route only
        headers["Allow"] = ", ".join(_methods(request))
    return answer(error.status_code, detail, headers=headers)


async def _on_redis_error(_: Request, error: Exception) -> JSONResponse:
    log.error("Redis failed: %s: %s", type(error).__name__, error)
    detail = "Redis, which holds the jobs, cannot be used at the moment; nothing was lost, try again"
    return answer(503, detail, headers={"Retry-After": str(RETRY_AFTER_S)})


async def _on_unexpected(_: Request, __: Exception) -> JSONResponse:
    return _unexpected()  # the server logs the traceback


def _methods(request: Request) -> list[str]:
    """The methods that the request's address takes."""
    found: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        if match != Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


def _unexpected() -> JSONResponse:
    return answer(500, "this is a defect of the service; its log says more")


def _page(status: int, reason: StatusReason | None) -> str:
    """The page about a problem: of its reason, or of what the status says."""
    if reason is None and status >= 500 and status not in REASONS:
        return SERVICE_PAGE
    return error_page(reason or REASONS.get(status, StatusReason.USER_ERROR))


def _summary(fields: Sequence[Mapping[str, str]]) -> str:
    first = fields[0]
    more = f" (and {len(fields) - 1} more)" if len(fields) > 1 else ""
    return f"{first['pointer'] or '/'}: {first['message']}{more}"
