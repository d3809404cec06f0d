"""Checks a dataset's file while it passes, in bounded memory: JSONL line by line, Parquet once its footer is there."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

from shared.data.compression import MAGIC, Gunzip, file_kind
from shared.data.jsonl import LineSplitter, refuse_constant
from shared.data.parquet import open_parquet, read_batches
from shared.data.row_reader import FORMS
from shared.errors import UserError

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
EXAMPLE = '{"messages": [{"role": "user", "content": "Hello"}]}'
FORMS_HINT = (
    'a row has one of these fields: prompt (text), messages (a list of {"role", "content"}), conversations (a list of'
    ' {"from", "value"}), or input_ids with loss_mask'
)


class FileCheck(Protocol):
    """What a file is, and whether it can be used; knows all once `finish` returned."""

    format: Literal["jsonl", "parquet"]
    compression: Literal["none", "gzip"]

    @property
    def rows(self) -> int:
        """Lines that are not blank, or rows of a Parquet file."""

    def feed(self, piece: bytes) -> None:
        """Check what can be checked so far.

        Raises:
            UserError
        """

    def finish(self) -> None:
        """Check the rest, and that there was a usable row at all.

        Raises:
            UserError
        """


def check_for(head: bytes, path: Path, max_row_bytes: int, max_bytes: int) -> FileCheck:
    """The check for a file that begins with `head` and is being written to `path`.

    Raises:
        UserError: the file is of a kind that is not read.
    """
    kind = file_kind(head)
    if kind == "parquet":
        return ParquetCheck(path, max_row_bytes)
    return GzipCheck(max_row_bytes, max_bytes) if kind == "gzip" else RowChecker(max_row_bytes)


class RowChecker:
    """Plain JSONL: UTF-8 (a byte order mark is allowed) with one JSON object a line.

    Blank lines are skipped, but counted in line numbers. CRLF and a missing last newline are fine.
    """

    format: Literal["jsonl", "parquet"] = "jsonl"
    compression: Literal["none", "gzip"] = "none"

    def __init__(self, max_row_bytes: int) -> None:
        self.rows = 0
        self._usable = False
        self._lines = LineSplitter(max_row_bytes)

    def feed(self, piece: bytes) -> None:
        self._check(self._lines.feed(piece))

    def finish(self) -> None:
        self._check(self._lines.finish())
        if not self.rows:
            raise UserError(
                "the file has no rows",
                where=f"line {self._lines.line or 1}",
                hint=f"write one JSON object a line, such as {EXAMPLE}",
            )
        _require_usable(self._usable)

    def _check(self, lines: Iterator[tuple[int, bytes]]) -> None:
        for number, line in lines:
            if number == 1 and line.startswith(UTF16_MARKS):
                _refuse(number, "the file is UTF-16", "save it as UTF-8")
            row = _parse(number, line)
            self.rows += 1
            self._usable = self._usable or any(row.get(form) is not None for form in FORMS)


class GzipCheck:
    """JSONL in gzip: what comes out is checked as plain JSONL, and may not be endless."""

    format: Literal["jsonl", "parquet"] = "jsonl"
    compression: Literal["none", "gzip"] = "gzip"

    def __init__(self, max_row_bytes: int, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._gunzip = Gunzip()
        self._inner = RowChecker(max_row_bytes)
        self._unpacked = 0

    @property
    def rows(self) -> int:
        return self._inner.rows

    def feed(self, piece: bytes) -> None:
        for unpacked in self._gunzip.feed(piece):
            if not self._unpacked and unpacked.startswith(tuple(MAGIC)):
                hint = "gzip is for JSONL: send Parquet as it is, and pack a file once"
                raise UserError("the gzip data holds another packed or Parquet file", where="byte 1", hint=hint)
            self._unpacked += len(unpacked)
            if self._unpacked > self.max_bytes:
                hint = "split the file, or raise EYRIE_MAX_UPLOAD_BYTES"
                raise UserError(f"the gzip data unpacks to more than {self.max_bytes} bytes", hint=hint)
            self._inner.feed(unpacked)

    def finish(self) -> None:
        self._gunzip.finish()
        self._inner.finish()


class ParquetCheck:
    """Parquet: its footer stands at its end, so nothing can be said before the last byte."""

    format: Literal["jsonl", "parquet"] = "parquet"
    compression: Literal["none", "gzip"] = "none"

    def __init__(self, path: Path, max_row_bytes: int) -> None:
        self.rows = 0
        self.path, self.max_row_bytes = path, max_row_bytes

    def feed(self, piece: bytes) -> None:
        """Nothing can be checked yet."""

    def finish(self) -> None:
        file = open_parquet(self.path)
        usable = False
        for batch in read_batches(file):
            self._check_size(batch)
            self.rows += batch.num_rows
            known = [name for name in FORMS if name in batch.schema.names]
            usable = usable or any(batch.column(name).null_count < batch.num_rows for name in known)
        if not file.metadata.num_rows:
            raise UserError("the file has no rows", hint="write at least one")
        _require_usable(usable)

    def _check_size(self, batch: Any) -> None:
        if batch.nbytes <= self.max_row_bytes:
            return
        for index in range(batch.num_rows):
            if batch.slice(index, 1).nbytes > self.max_row_bytes:
                raise UserError(
                    f"longer than {self.max_row_bytes} bytes",
                    where=f"row {self.rows + index + 1}",
                    hint="shorten the row, or raise EYRIE_MAX_ROW_BYTES",
                )


def _parse(number: int, line: bytes) -> dict[str, Any]:
    try:
        row = DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        _refuse(number, f"byte {error.start + 1} of the line is not UTF-8", "save it as UTF-8")
    except json.JSONDecodeError as error:
        _refuse(
            number, f"not JSON: {error.msg} at column {error.colno}", "write each row as one JSON object on one line"
        )
    except RecursionError:
        _refuse(number, "nested too deeply", "flatten the row")
    except ValueError as error:
        _refuse(number, f"not JSON: {error}", "write each row as one JSON object on one line")
    if not isinstance(row, dict):
        _refuse(number, "not a JSON object", f"write each row as an object, {EXAMPLE}")
    return row


def _require_usable(usable: bool) -> None:
    if not usable:
        raise UserError("no row of the file has a field that is read", hint=FORMS_HINT)


def _refuse(line: int, message: str, hint: str) -> NoReturn:
    raise UserError(message, where=f"line {line}", hint=hint)


DECODER = json.JSONDecoder(parse_constant=refuse_constant)
