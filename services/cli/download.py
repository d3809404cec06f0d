"""Brings one file here: by ranges where a part is there already, and checked against its SHA-256."""

import hashlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import httpx

from services.cli.errors import BadInput, Unreachable, error_of

Advance = Callable[[str, int, int], None]
"""Called with path, bytes so far and bytes in all."""

ATTEMPTS = 5


def fetch_file(http: httpx.Client, file: dict[str, Any], folder: Path, advance: Advance | None = None) -> Path:
    """Download a file that the API lists into `folder`, and return where it lies.

    Until it is whole and checked it is called `NAME.part`.

    Raises:
        ApiError: it cannot be had, or stays damaged.
        OSError: it cannot be written.
    """
    target = folder / safe_path(file["path"])
    if target.is_file() and target.stat().st_size == file["size"] and _sha256(target) == file["sha256"]:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    failures, damaged = 0, 0
    while failures < ATTEMPTS and damaged < ATTEMPTS:
        before = _size(part)
        try:
            _continue(http, file, part, advance)
        except httpx.TransportError:  # what has arrived is kept, the rest is asked for again
            failures = 0 if _size(part) > before else failures + 1
            continue
        if part.stat().st_size == file["size"] and _sha256(part) == file["sha256"]:
            part.replace(target)
            return target
        part.unlink()  # damaged: from the beginning
        damaged += 1
    raise Unreachable(
        f"{file['path']} did not arrive whole in {ATTEMPTS} attempts: run the same command again to go on"
    )


def safe_path(path: str) -> PurePosixPath:
    """A path that stays below the folder it is put in.

    Raises:
        ApiError: it does not.
    """
    pure = PurePosixPath(path)
    if pure.is_absolute() or not pure.parts or ".." in pure.parts or "\\" in path or "\0" in path:
        raise BadInput(f"the gateway names a file outside of the folder: {path!r}")
    return pure


def _continue(http: httpx.Client, file: dict[str, Any], part: Path, advance: Advance | None) -> None:
    size = _size(part)
    if part.is_file() and size >= file["size"]:
        return
    headers = {"Range": f"bytes={size}-", "If-Range": f'"{file["sha256"]}"'} if size else {}
    with http.stream("GET", file["url"], headers=headers) as response:
        if response.status_code >= 400:
            response.read()
            raise error_of(response)
        resumed = response.status_code == 206
        done = size if resumed else 0
        with part.open("ab" if resumed else "wb") as out:
            for piece in response.iter_bytes():
                out.write(piece)
                done += len(piece)
                if advance:
                    advance(file["path"], done, file["size"])


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
