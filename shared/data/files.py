"""Reads the files of a dataset's folder as rows, one after the other, in bounded memory.

In: `datasets/ID` with its `dataset.json`. Out: rows as they stand in the files, with the number that a person finds
them by: the line of a JSONL file (blank lines count), the row of a Parquet file or of a folder of ready-made rows;
all from 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.data.compression import Gunzip
from shared.data.jsonl import MAX_ROW_BYTES, LineSplitter
from shared.data.parquet import read_parquet
from shared.data.ready_rows import ReadyRow, read_ready_rows
from shared.data.refusal import RowRejected
from shared.errors import ArtifactStoreError, UserError
from shared.schemas.registry import ONLY_SOURCE, DatasetFile, DatasetRecord

PIECE_BYTES = 1 << 18


@dataclass(frozen=True)
class RawRow:
    """A row that nobody has judged yet.

    Attributes:
        source: name of the dataset's file.
        line: in that file, from 1.
        value: the line's text (JSONL), the object (Parquet, Arrow), or the refusal of a row that cannot be read.
        ready: what comes with a row of a ready-made folder.
    """

    source: str
    line: int
    value: str | dict[str, Any] | RowRejected
    ready: ReadyRow | None = None


def read_rows(folder: Path, record: DatasetRecord) -> Iterator[RawRow]:
    """Yield all rows of all files, in the record's order.

    Raises:
        UserError: a file is damaged, or a line is longer than any upload may have.
        ArtifactStoreError: a file is not there.
    """
    if record.kind == "rows":
        for number, (row, ready) in enumerate(read_ready_rows(folder, record), 1):
            yield RawRow(ONLY_SOURCE, number, row, ready)
        return
    for file in record.files:
        try:
            yield from read_file(folder / file.path, file)
        except UserError as error:
            where = f"{file.name}, {error.where}" if error.where else file.name
            raise UserError(error.message, where=where, hint=error.hint) from None
        except FileNotFoundError:
            hint = "the artifact store has lost it: upload the dataset again"
            raise ArtifactStoreError(f"the file {file.path} of the dataset is gone", hint=hint) from None


def read_file(path: Path, file: DatasetFile) -> Iterator[RawRow]:
    """Yield the rows of one file."""
    if file.format == "parquet":
        for number, row in read_parquet(path):
            yield RawRow(file.name, number, row)
        return
    pieces = _pieces(path)
    for number, line in _lines(_unpacked(pieces) if file.compression == "gzip" else pieces):
        yield RawRow(file.name, number, line.decode("utf-8", "surrogateescape"))


def _lines(pieces: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    splitter = LineSplitter(MAX_ROW_BYTES)
    for piece in pieces:
        yield from splitter.feed(piece)
    yield from splitter.finish()


def _unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    gunzip = Gunzip()
    for piece in pieces:
        yield from gunzip.feed(piece)
    gunzip.finish()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
