"""Checks a JSONL file while it passes: line by line, in bounded memory."""

import codecs
import json
from typing import NoReturn

from shared.errors import UserError

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class RowChecker:
    """Feed it the file's bytes in pieces, then call `finish`.

    A file is UTF-8 (a byte order mark is allowed) with one JSON object a line. Blank lines are skipped, but counted in
    line numbers. CRLF and a missing last newline are fine.

    Attributes:
        rows: lines that are not blank, so far.
    """

    def __init__(self, max_row_bytes: int) -> None:
        self.max_row_bytes = max_row_bytes
        self.rows = 0
        self._line = 0
        self._rest = bytearray()

    def feed(self, piece: bytes) -> None:
        """Check all lines that end in `piece`.

        Raises:
            UserError: with the number of the bad line.
        """
        lines = piece.split(b"\n")
        for part in lines[:-1]:
            self._rest += part
            self._check(bytes(self._rest))
            self._rest.clear()
        self._rest += lines[-1]
        if len(self._rest) > self.max_row_bytes:
            self._line += 1
            self._too_long()

    def finish(self) -> None:
        """Check the last line, and that there was a row at all.

        Raises:
            UserError
        """
        if self._rest:
            self._check(bytes(self._rest))
        if not self.rows:
            raise UserError(
                "the file has no rows",
                where=f"line {self._line or 1}",
                hint='write one JSON object a line, such as {"messages": [{"role": "user", "content": "Hello"}]}',
            )

    def _check(self, line: bytes) -> None:
        self._line += 1
        if len(line) > self.max_row_bytes:
            self._too_long()
        if self._line == 1:
            if line.startswith(UTF16_MARKS):
                self._refuse("the file is UTF-16", "save it as UTF-8")
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.strip():
            return
        self._check_row(line)
        self.rows += 1

    def _check_row(self, line: bytes) -> None:
        try:
            row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
        except UnicodeDecodeError as error:
            self._refuse(f"byte {error.start + 1} of the line is not UTF-8", "save it as UTF-8")
        except json.JSONDecodeError as error:
            self._refuse(
                f"not JSON: {error.msg} at column {error.colno}",
                "write each row as one JSON object on one line",
            )
        except RecursionError:
            self._refuse("nested too deeply", "flatten the row")
        except ValueError as error:
            self._refuse(f"not JSON: {error}", "write each row as one JSON object on one line")
        if not isinstance(row, dict):
            self._refuse("not a JSON object", 'write each row as an object, {"messages": [...]}')

    def _too_long(self) -> NoReturn:
        self._refuse(
            f"longer than {self.max_row_bytes} bytes",
            "shorten the row, or raise EYRIE_MAX_ROW_BYTES; is there a newline after each row?",
        )

    def _refuse(self, message: str, hint: str) -> NoReturn:
        raise UserError(message, where=f"line {self._line}", hint=hint)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that JSON has")
