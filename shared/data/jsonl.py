"""JSON lines: cuts a file's bytes into numbered lines in bounded memory, and reads a line as an object."""

import codecs
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from shared.data.refusal import RowRejected
from shared.errors import UserError

MAX_ROW_BYTES = 256 * 1024**2  # on reading; uploads are held to EYRIE_MAX_ROW_BYTES


class LineSplitter:
    """Feed it a file's bytes in pieces, then call `finish`; blank lines are counted, but not given.

    A byte order mark at the start of a line and CR at its end are dropped: files are joined with `cat`, too.

    Attributes:
        line: number of the last line, from 1.
    """

    def __init__(self, max_row_bytes: int = MAX_ROW_BYTES) -> None:
        self.max_row_bytes = max_row_bytes
        self.line = 0
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield number and bytes of the lines that end in `piece`.

        Raises:
            UserError: a line is too long.
        """
        first, *others = piece.split(b"\n")
        self._rest += first
        if others:
            whole = bytes(self._rest)
            self._rest = bytearray(others.pop())
            yield from self._line(whole)
            for part in others:
                yield from self._line(part)
        if len(self._rest) > self.max_row_bytes:
            self.line += 1
            raise self._too_long()

    def finish(self) -> Iterator[tuple[int, bytes]]:
        """Yield the last line where no newline follows it."""
        if self._rest:
            whole, self._rest = bytes(self._rest), bytearray()
            yield from self._line(whole)

    def _line(self, line: bytes) -> Iterator[tuple[int, bytes]]:
        self.line += 1
        if len(line) > self.max_row_bytes:
            raise self._too_long()
        text = line.removeprefix(codecs.BOM_UTF8).strip()
        if text:
            yield self.line, text

    def _too_long(self) -> UserError:
        return UserError(
            f"longer than {self.max_row_bytes} bytes",
            where=f"line {self.line}",
            hint="shorten the row, or raise EYRIE_MAX_ROW_BYTES; is there a newline after each row?",
        )


def parse_object(text: str) -> dict[str, Any]:
    """Read a row. What JSON leaves open is refused: a field given twice, NaN, bytes that are not UTF-8.

    Raises:
        RowRejected
    """
    try:
        text.encode("utf-8")
        row = DECODER.decode(text)
    except UnicodeEncodeError:
        raise RowRejected("not_utf8", "is not UTF-8") from None
    except RecursionError:
        raise RowRejected("not_json", "is nested too deeply") from None
    except ValueError as error:
        raise RowRejected("not_json", f"is not JSON: {error}"[:200]) from None
    if not isinstance(row, dict):
        raise RowRejected("not_an_object", "is not a JSON object")
    return row


def refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python's reader takes and JSON has not."""
    raise ValueError(f"{name} is not a number that JSON has")


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = Counter(name for name, _ in pairs)
        twice = next(name for name in names if names[name] > 1)
        raise RowRejected("duplicate_key", f"has the field {twice[:80]!r} twice in one object")
    return fields


DECODER = json.JSONDecoder(object_pairs_hook=_unambiguous, parse_constant=refuse_constant)
