"""Reads request bodies with a limit, and what is left of a body that was refused."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import Message

from services.gateway.problems import Problem

MAX_DOCUMENT_BYTES = 1 << 20
DRAIN_BYTES = 64 << 20
LIMITED = frozenset({"POST", "PUT", "DELETE"})
JSON_HEADER = (b"content-type", b"application/json")


class DocumentRoute(APIRoute):
    """A route that takes no more than a document: FastAPI by itself reads bodies of any size.

    Where FastAPI parses the body, it is JSON whatever its type is called, as for the routes that parse it themselves.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Read the body with its limit, then answer."""
        answer = super().get_route_handler()

        async def limited(request: Request) -> Response:
            content = await read_document(request, "the body")
            scope = dict(request.scope)
            if content and self.body_field is not None:
                parse_json(content)
                others = [header for header in scope["headers"] if header[0] != JSON_HEADER[0]]
                scope["headers"] = [*others, JSON_HEADER]

            async def receive() -> Message:
                return {"type": "http.request", "body": content, "more_body": False}

            return await answer(Request(scope, receive))

        return limited if LIMITED & (self.methods or set()) else answer


async def read_json_object(request: Request, what: str = "a job document", *, optional: bool = False) -> dict[str, Any]:
    """The request's body as a JSON object.

    Args:
        what: the body is, for the messages.
        optional: take no body for an empty object.

    Raises:
        Problem: 413 above `MAX_DOCUMENT_BYTES`, 400 where it is not JSON, 422 where it is not an object.
    """
    content = await read_document(request, what)
    if optional and not content.strip():
        return {}
    document = parse_json(content)
    if not isinstance(document, dict):
        raise Problem(422, f"the body must be a JSON object, {what}")
    return document


async def read_document(request: Request, what: str) -> bytes:
    """A body that may not be longer than `MAX_DOCUMENT_BYTES`.

    Raises:
        Problem: 413; a client that waits for "100 Continue" sends nothing of it.
    """
    content, stream = bytearray(), request.stream()
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isascii() and length.isdigit() else 0
    if announced > MAX_DOCUMENT_BYTES and "expect" in request.headers:
        raise _too_long(what)
    async for chunk in stream:
        content += chunk
        if max(announced, len(content)) > MAX_DOCUMENT_BYTES:
            await drain(stream)
            raise _too_long(what)
    return bytes(content)


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


def parse_json(content: bytes) -> Any:
    """What JSON stands for; names that an object has twice, and numbers that JSON does not have, are refused.

    Raises:
        Problem: 400.
    """
    try:
        return json.loads(
            content.decode("utf-8-sig"), parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeated
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Problem(400, f"the body is not JSON: {error.msg} at {where}") from None
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8 at byte {error.start}") from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Problem(400, f"the body cannot be read as JSON: {reason}") from None


def _too_long(what: str) -> Problem:
    detail = f"{what} may have {MAX_DOCUMENT_BYTES} bytes; prompts are uploaded with POST /v1/datasets"
    return Problem(413, detail)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that JSON has")


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice!r} stands in one object twice")
    return found
