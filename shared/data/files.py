"""Reads the files of a dataset's folder as rows, one after the other, in bounded memory.

In: `datasets/ID` with its `dataset.json`. Out: rows as they stand in the files, with the number that a person finds
them by: the line of a JSONL file (blank lines count), the row of a Parquet file; both from 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.data.conversations import read_lines
from shared.schemas.registry import DatasetRecord


@dataclass(frozen=True)
class RawRow:
    """A row that nobody has judged yet.

    Attributes:
        source: name of the dataset's file.
        line: in that file, from 1.
        value: the line's text (JSONL), or the object (Parquet).
    """

    source: str
    line: int
    value: Any


def read_record(folder: Path) -> DatasetRecord:
    """The record of a dataset's folder."""
    return DatasetRecord.model_validate_json((folder / "dataset.json").read_bytes())


def read_rows(folder: Path, record: DatasetRecord) -> Iterator[RawRow]:
    """Yield all rows of all files, in the record's order."""
    for file in record.files:
        for line, text in read_lines(folder / file.path):
            yield RawRow(file.name, line, text)
