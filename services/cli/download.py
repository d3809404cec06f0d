"""Brings files here: by ranges where a part is there already, checked against their SHA-256, and over no other file."""

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import httpx

from services.cli.errors import BadInput, Conflict, Unreachable, error_of

Advance = Callable[[str, int, int], None]
"""Called with path, bytes so far and bytes in all."""

ATTEMPTS = 5


def require_own_files(files: Iterable[dict[str, Any]], folder: Path) -> None:
    """Make sure that none of the files stands in `folder` with other content: nothing is overwritten.

    Raises:
        Conflict: one does.
        BadInput: the API names a file outside of the folder.
    """
    for file in files:
        target = folder / safe_path(file["path"])
        if os.path.lexists(target) and not _is_whole(target, file):
            raise _in_the_way(target)


def fetch_file(http: httpx.Client, file: dict[str, Any], folder: Path, advance: Advance | None = None) -> Path:
    """Download a file that the API lists into `folder`, and return where it lies.

    Until it is whole and checked it is called `.NAME.HASH.part`, after its content: what was broken off is only gone on
    with for the same file.

    Raises:
        ApiError: it cannot be had, stays damaged, or another file has its name.
        OSError: it cannot be written.
    """
    target = folder / safe_path(file["path"])
    if _is_whole(target, file):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{file['sha256'][:12]}.part")
    failures, damaged = 0, 0
    while failures < ATTEMPTS and damaged < ATTEMPTS:
        before = _size(part)
        try:
            _continue(http, file, part, advance)
        except httpx.TransportError:  # what has arrived is kept, the rest is asked for again
            failures = 0 if _size(part) > before else failures + 1
            continue
        if _is_whole(part, file):
            _name(part, target)
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


def _name(part: Path, target: Path) -> None:
    """Give a whole file its name, unless another file has taken it meanwhile."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise _in_the_way(target) from None
    except OSError:  # a filesystem without hard links
        if os.path.lexists(target):
            raise _in_the_way(target) from None
        part.replace(target)
    else:
        part.unlink()


def _in_the_way(target: Path) -> Conflict:
    return Conflict(f"{target} is there already with other content, and nothing is overwritten: give another folder")


def _is_whole(path: Path, file: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == file["size"] and _sha256(path) == file["sha256"]


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
