"""Lines of a log file that may still grow, by byte offset.

Logs hold whatever processes write: progress bars that return to the start of the line, bytes that are no UTF-8, lines
without an end. A line is what a terminal would show of it in the end; a very long one is cut into pieces.
"""

import os
from dataclasses import dataclass
from pathlib import Path

MAX_LINE_BYTES = 64 * 1024
MAX_READ_BYTES = 4 * MAX_LINE_BYTES
BLOCK_BYTES = 64 * 1024


@dataclass(frozen=True)
class Line:
    """A line, and the offset behind it: where the next one starts."""

    text: str
    end: int


def read_lines(path: Path, offset: int, most: int, *, complete: bool) -> list[Line]:
    """Lines from an offset on, as many as one read brings; at most `most`.

    Args:
        complete: nobody writes any more, so that the last line needs no end.
    """
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read(MAX_READ_BYTES)
        at_end = complete and not file.read(1)
    found: list[Line] = []
    start = 0
    while start < len(content) and len(found) < most:
        end = _line_end(content, start, at_end)
        if end is None:
            break
        found.append(Line(_shown(content[start:end]), offset + end))
        start = end
    return found


def tail_offset(path: Path, lines: int) -> tuple[int, int]:
    """Where the last `lines` lines of a file start, and how many those are; a half-written one counts."""
    with path.open("rb") as file:
        place = size = file.seek(0, os.SEEK_END)
        found, first = 0, True
        while place > 0:
            start = max(place - BLOCK_BYTES, 0)
            file.seek(start)
            block = file.read(place - start)
            if first and block.endswith(b"\n"):
                block = block[:-1]
            first = False
            end = len(block)
            while (end := block.rfind(b"\n", 0, end)) >= 0:
                found += 1
                if found == lines:
                    return start + end + 1, lines
            place = start
    return 0, found + 1 if size else 0


def _line_end(content: bytes, start: int, at_end: bool) -> int | None:
    """Where the line ends, with its end; None while that is not known yet."""
    newline = content.find(b"\n", start, start + MAX_LINE_BYTES + 1)
    if newline >= 0:
        return newline + 1
    if len(content) - start > MAX_LINE_BYTES:
        return start + _whole_characters(content[start : start + MAX_LINE_BYTES])
    return len(content) if at_end else None


def _whole_characters(piece: bytes) -> int:
    """Length of the piece without a UTF-8 character that it may have only the start of."""
    for back in (1, 2, 3):
        if piece[-back] >= 0b1100_0000:
            return len(piece) - back
        if piece[-back] < 0b1000_0000:
            break
    return len(piece)


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    return text.rpartition("\r")[2]
