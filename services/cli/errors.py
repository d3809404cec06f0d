"""What can go wrong for a caller of the API, with the exit code that each has on the command line."""

from collections.abc import Sequence
from typing import Any

import httpx

EXIT_JOB_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3
EXIT_NOT_FOUND = 4
EXIT_CONFLICT = 5
EXIT_NOT_ALLOWED = 6
EXIT_DETACHED = 130
EXIT_PIPE_CLOSED = 141  # as if SIGPIPE had ended it


class ApiError(Exception):
    """A call that did not do what was asked; the text says what, where and what to do.

    Attributes:
        errors: wrong fields, each with `pointer` and `message`.
    """

    exit_code = EXIT_BAD_INPUT

    def __init__(self, message: str, errors: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.errors = list(errors)


class BadInput(ApiError):
    """What was given cannot be accepted."""


class Unreachable(ApiError):
    """The gateway does not answer, or cannot work at the moment."""

    exit_code = EXIT_UNREACHABLE


class NotFound(ApiError):
    """There is no such thing."""

    exit_code = EXIT_NOT_FOUND


class Conflict(ApiError):
    """The state of the thing does not allow this."""

    exit_code = EXIT_CONFLICT


class NotAllowed(ApiError):
    """The gateway wants an API key, or another one."""

    exit_code = EXIT_NOT_ALLOWED


def error_of(response: httpx.Response) -> ApiError:
    """The error that a response of 400 or more stands for."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict) or "detail" not in document:
        return Unreachable(
            f"{response.request.url} answered {response.status_code} and not as an Eyrie gateway does: "
            "check --url (or EYRIE_URL)"
        )
    detail, errors = str(document["detail"]), document.get("errors") or []
    if response.status_code in (401, 403):
        hint = " (eyrie takes it from --api-key-file, EYRIE_API_KEY or EYRIE_API_KEY_FILE)"
        return NotAllowed(detail + (hint if response.status_code == 401 else ""), errors)
    if response.status_code == 404:
        return NotFound(detail, errors)
    if response.status_code == 409:
        return Conflict(detail, errors)
    if response.status_code == 429 or response.status_code >= 500:
        return Unreachable(detail, errors)
    return BadInput(detail, errors)
