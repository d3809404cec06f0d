"""Reads request bodies with a limit, and what is left of a body that was refused."""

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from services.gateway.problems import Problem

MAX_DOCUMENT_BYTES = 1 << 20
DRAIN_BYTES = 64 << 20


async def read_json_object(request: Request, what: str = "a job document", *, optional: bool = False) -> dict[str, Any]:
    """The request's body as a JSON object.

    Args:
        what: the body is, for the messages.
        optional: take no body for an empty object.

    Raises:
        Problem: 413 above `MAX_DOCUMENT_BYTES`, 400 where it is not JSON, 422 where it is not an object.
    """
    content = bytearray()
    stream = request.stream()
    async for chunk in stream:
        content += chunk
        if len(content) > MAX_DOCUMENT_BYTES:
            await drain(stream)
            raise Problem(
                413,
                f"{what} may have {MAX_DOCUMENT_BYTES} bytes; prompts are uploaded with POST /v1/datasets",
            )
    return {} if optional and not content.strip() else _parse(bytes(content), what)


async def drain(stream: AsyncIterator[bytes]) -> None:
    """Read on for a while: a client that is still sending would otherwise not see the answer."""
    seen = 0
    try:
        async for chunk in stream:
            seen += len(chunk)
            if seen > DRAIN_BYTES:
                return
    except ClientDisconnect:
        return


def _parse(content: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(content.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Problem(400, f"the body is not JSON: {error.msg} at {where}") from None
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8 at byte {error.start}") from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Problem(400, f"the body cannot be read as JSON: {reason}") from None
    if not isinstance(document, dict):
        raise Problem(422, f"the body must be a JSON object, {what}")
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that JSON has")
