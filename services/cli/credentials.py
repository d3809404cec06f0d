"""The API key: out of a file or the environment, never an argument, which every process of a machine can read."""

import os
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

import httpx

from services.cli.errors import BadInput

NAMED_FILE: ContextVar[Path | None] = ContextVar("named_file", default=None)
"""The file that `--api-key-file` names."""


def api_key() -> str | None:
    """The key to send: of `--api-key-file`, else EYRIE_API_KEY, else the file that EYRIE_API_KEY_FILE names; or None.

    Raises:
        BadInput: the file cannot be read, or holds no key.
    """
    named = NAMED_FILE.get()
    if named is not None:
        return _read(named, "--api-key-file")
    if key := os.environ.get("EYRIE_API_KEY", "").strip():
        return _sendable(key, "EYRIE_API_KEY")
    if file := os.environ.get("EYRIE_API_KEY_FILE"):
        return _read(Path(file), "EYRIE_API_KEY_FILE")
    return None


def key_for(url: str) -> Callable[[httpx.Request], httpx.Request] | None:
    """What puts the API key on requests to the server of `url`, and on no others; None where there is no key."""
    key, own = api_key(), httpx.URL(url)

    def sign(request: httpx.Request) -> httpx.Request:
        if (request.url.scheme, request.url.host, request.url.port) == (own.scheme, own.host, own.port):
            request.headers["Authorization"] = f"Bearer {key}"
        return request

    return sign if key is not None else None


def _read(file: Path, source: str) -> str:
    try:
        key = file.read_bytes().decode("ascii", "replace").strip()
    except OSError as error:
        raise BadInput(f"{source}: {file} cannot be read: {error.strerror}") from None
    if not key:
        raise BadInput(f"{source}: {file} is empty")
    return _sendable(key, f"{source}: {file}")


def _sendable(key: str, source: str) -> str:
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise BadInput(f"{source} holds no API key: that has printable ASCII characters and no spaces")
    return key
