"""A file as a download: by range, and under conditions (RFC 9110); its strong ETag is its SHA-256.

`Content-Digest` is sent with whole answers, `Repr-Digest` always (RFC 9530): the second is that of the whole file,
which a resumed download is checked against in the end.
"""

import base64
from typing import Any

from fastapi import Request
from fastapi.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from services.gateway.problems import Problem, answer

RANGE_REFUSED = frozenset({400, 416})
DOWNLOADS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file",
        "headers": {
            "ETag": {"description": "The file's SHA-256, strong.", "schema": {"type": "string"}},
            "Content-Digest": {"description": "`sha-256=:BASE64:` of what is sent.", "schema": {"type": "string"}},
            "Repr-Digest": {"description": "`sha-256=:BASE64:` of the whole file.", "schema": {"type": "string"}},
            "Accept-Ranges": {"description": "`bytes`", "schema": {"type": "string"}},
        },
        "content": {
            kind: {"schema": {"type": "string", "format": "binary"}, "example": "the file's bytes"}
            for kind in ("application/octet-stream", "application/x-ndjson", "text/markdown", "text/plain")
        }
        | {"application/json": {"schema": {}, "example": {"the file": "itself"}}},
    },
    206: {"description": "The range that was asked for"},
    304: {"description": "`If-None-Match` names what the client has"},
    400: {"description": "The `Range` header cannot be read"},
    412: {"description": "`If-Match` names another version"},
    416: {"description": "The file has no such range"},
}


class Download(FileResponse):
    """A `FileResponse` that refuses a range as everything else is refused."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: Message | None = None
        if not asks_for_ranges(Request(scope)):
            scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != b"range"]}

        async def watch(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] in RANGE_REFUSED:
                refused = message
            if refused is None:
                await send(message)

        await super().__call__(scope, receive, watch)
        if refused is not None:
            await self._refusal(refused, scope)(scope, receive, send)

    def _refusal(self, refused: Message, scope: Scope) -> Response:
        asked = Request(scope).headers["range"]
        size = self.headers["content-length"]
        message = f"the file has {size} bytes; give a range such as bytes=0-99"
        field = {"source": "header", "pointer": "/Range", "message": message}
        headers = {"Content-Range": f"bytes */{size}"} if refused["status"] == 416 else {}
        return answer(refused["status"], f"the range {asked!r} cannot be sent: {message}", [field], headers)


def asks_for_ranges(request: Request) -> bool:
    """Whether the `Range` header counts: only a GET has ranges, and one of another unit is as good as none."""
    unit = request.headers.get("range", "").partition("=")[0]
    return request.method == "GET" and unit.strip().lower() == "bytes"


def validators(sha256: str, request: Request) -> dict[str, str]:
    """The headers that say which content a file has."""
    digest = f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"
    headers = {"ETag": f'"{sha256}"', "Repr-Digest": digest, "Cache-Control": "private, no-cache"}
    return headers if asks_for_ranges(request) else {**headers, "Content-Digest": digest}


def is_unchanged(sha256: str, request: Request) -> bool:
    """Whether the client has the content already, by `If-None-Match`.

    Raises:
        Problem: 412, `If-Match` names another content.
    """
    tag = f'"{sha256}"'
    wanted = request.headers.get("if-match")
    if wanted is not None and not {tag, "*"} & set(_tags(wanted)):
        message = f"the file's ETag is {tag}"
        field = {"source": "header", "pointer": "/If-Match", "message": message}
        raise Problem(412, f"this is not the version that If-Match names: {message}", errors=[field])
    known = [known.removeprefix("W/") for known in _tags(request.headers.get("if-none-match", ""))]
    return tag in known or "*" in known


def _tags(header: str) -> list[str]:
    return [tag.strip() for tag in header.split(",")]
