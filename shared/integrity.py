"""Holds stored files against what a manifest says of them: there, as long as they were, and with the same bytes."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from shared.schemas.manifest import FileEntry

MAX_THREADS = 16


@dataclass(frozen=True)
class Damage:
    """A file that is not what its manifest says."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path} {self.what}"


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def absent_or_cut(root: Path, files: Iterable[FileEntry]) -> Iterator[Damage]:
    """Yield the files below `root` that are gone or have another size; nothing is read."""
    for entry in files:
        if (damage := _size_damage(root, entry)) is not None:
            yield damage


def changed(root: Path, files: Iterable[FileEntry], advance: Callable[[int], None] | None = None) -> list[Damage]:
    """The files below `root` that are gone or whose SHA-256 is another; all of them are read, several at a time.

    Args:
        advance: called with the size of each file when it was read.
    """

    def look(entry: FileEntry) -> Damage | None:
        damage = _size_damage(root, entry)
        if damage is None and file_sha256(root / entry.path) != entry.sha256:
            damage = Damage(entry.path, "has other content")
        if advance is not None:
            advance(entry.size)
        return damage

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        try:
            return [damage for damage in pool.map(look, files) if damage is not None]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def size_damage(entry: FileEntry, size: int | None) -> Damage | None:
    """What is wrong with a file that has `size` bytes; None: it is not there."""
    if size is None:
        return Damage(entry.path, "is missing")
    return None if size == entry.size else Damage(entry.path, f"has {size} bytes instead of {entry.size}")


def _size_damage(root: Path, entry: FileEntry) -> Damage | None:
    try:
        return size_damage(entry, (root / entry.path).stat().st_size)
    except (FileNotFoundError, NotADirectoryError):
        return size_damage(entry, None)
