"""A folder as a tar archive, made while it is sent: equal folders give equal bytes, and nothing is written to disk."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

PIECE_BYTES = 1 << 18
END = bytes(2 * tarfile.BLOCKSIZE)


class FolderArchive:
    """The files of a folder and of those in it, in the order of their names.

    Attributes:
        size: of the archive, in bytes.

    Raises:
        OSError: the folder cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        self._entries = [(path, _header(path.relative_to(folder).as_posix(), path.stat().st_size)) for path in files]
        self.size = len(END) + sum(len(header.tobuf()) + _padded(header.size) for _, header in self._entries)

    def __iter__(self) -> Iterator[bytes]:
        for path, header in self._entries:
            yield header.tobuf()
            yield from _content(path, header.size)
            yield bytes(_padded(header.size) - header.size)
        yield END


def _header(name: str, size: int) -> tarfile.TarInfo:
    """An entry of which nothing but name and size is told."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


def _content(path: Path, size: int) -> Iterator[bytes]:
    """Exactly `size` bytes of a file.

    Raises:
        OSError: it has become shorter.
    """
    left = size
    with path.open("rb") as file:
        while left:
            piece = file.read(min(left, PIECE_BYTES))
            if not piece:
                raise OSError(f"{path} became shorter while it was sent")
            left -= len(piece)
            yield piece


def _padded(size: int) -> int:
    return size + -size % tarfile.BLOCKSIZE
