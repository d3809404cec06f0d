"""Rows of a dataset of kind `rows`, one after the other, with what Eyrie's own `rows.jsonl` says of each.

In: the dataset's folder. Out: rows of token ids as they stand in the Arrow files, in the order in which speculators
counts them: row I's hidden states are `hs_I.safetensors`. Memory does not grow with the number of rows.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shared.data.arrow import read_batches
from shared.data.ready_folder import ROWS, arrow_names, states_names
from shared.data.refusal import RowRejected
from shared.errors import UserError
from shared.schemas.registry import DatasetRecord

BATCH_ROWS = 256
COLUMNS = ("input_ids", "loss_mask", "seq_len")
SPLITS = ("train", "val")


@dataclass(frozen=True)
class ReadyRow:
    """What comes with a ready-made row.

    Attributes:
        states: its hidden states, relative to the dataset's folder; None where it brings none.
        last_id: the answer's last id, the target of the last state, where it is known.
        split: the side that it stands on already; None where the job decides.
    """

    states: str | None = None
    last_id: int | None = None
    split: str | None = None


def read_ready_rows(folder: Path, record: DatasetRecord) -> Iterator[tuple[dict[str, Any] | RowRejected, ReadyRow]]:
    """Yield each row's fields (or its refusal), and what comes with it.

    Raises:
        UserError: an Arrow file or `rows.jsonl` is damaged, or they do not belong together.
    """
    names = [file.name for file in record.files]
    states = states_names(names)
    index = read_index(folder / "files" / ROWS) if ROWS in names else None
    number = 0
    for number, row in enumerate(_arrow_rows(folder / "files", names), 1):
        entry = next(index, None) if index else {}
        if entry is None:
            raise UserError(f"has {number - 1} lines, there are more rows", where=ROWS)
        value = _fields(row, entry, number)
        name = states.get(number - 1)
        yield value, ReadyRow(f"files/{name}" if name else None, entry.get("last_id"), entry.get("split"))
    if index and next(index, None) is not None:
        raise UserError(f"has more lines than the {number} rows", where=ROWS)


def read_index(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of Eyrie's `rows.jsonl`, one a row.

    Raises:
        UserError: a line is not such an entry.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                entry = None
            if not isinstance(entry, dict) or not _well_formed(entry, number):
                raise UserError(
                    f"line {number + 1} is no entry of row {number}",
                    where=ROWS,
                    hint="take rows.jsonl from the folder that the rows are from, or leave it out",
                )
            yield entry


def held_out_lines(folder: Path, record: DatasetRecord) -> Iterator[int] | None:
    """Numbers (from 1) of the rows that are held out already; None where not every row says on which side it stands."""
    path = folder / "files" / ROWS
    if ROWS not in {file.name for file in record.files}:
        return None
    splits = {entry.get("split") for entry in read_index(path)}
    if not splits <= set(SPLITS):
        return None
    return (number for number, entry in enumerate(read_index(path), 1) if entry["split"] == "val")


def count_masked(folder: Path, record: DatasetRecord) -> dict[int, int]:
    """How often each id stands under a loss mask, over all rows: what speculators' `token_freq.pt` holds."""
    counts: dict[int, int] = {}
    for batch in _batches(folder / "files", [file.name for file in record.files]):
        learnt = [_masked(*row) for row in zip(batch.column("input_ids"), batch.column("loss_mask"), strict=True)]
        ids, times = np.unique(np.concatenate(learnt), return_counts=True)
        for id_, count in zip(ids.tolist(), times.tolist(), strict=True):
            counts[id_] = counts.get(id_, 0) + count
    return counts


def _masked(ids: pa.ListScalar, mask: pa.ListScalar) -> NDArray[np.int64]:
    """The ids of a row that its mask marks; none of a row that is refused anyhow."""
    if ids.values is None or mask.values is None or len(ids.values) != len(mask.values):
        return np.empty(0, dtype=np.int64)
    if ids.values.null_count or mask.values.null_count:
        return np.empty(0, dtype=np.int64)
    marked = mask.values.to_numpy(zero_copy_only=False) == 1
    return np.asarray(ids.values.to_numpy(zero_copy_only=False)[marked], dtype=np.int64)


def _well_formed(entry: dict[str, Any], number: int) -> bool:
    last_id, conversation = entry.get("last_id"), entry.get("conversation")
    return (
        entry.get("index", number) == number
        and (last_id is None or (isinstance(last_id, int) and not isinstance(last_id, bool)))
        and (conversation is None or isinstance(conversation, str))
        and entry.get("split") in (None, *SPLITS)
    )


def _fields(row: dict[str, Any], entry: dict[str, Any], number: int) -> dict[str, Any] | RowRejected:
    length = len(row["input_ids"] or ())
    for name, given in (("its column seq_len", row.get("seq_len")), (ROWS, entry.get("seq_len"))):
        if given is not None and given != length:
            return RowRejected("bad_length", f"has {length} token ids, {name} says {given}")
    fields = {"input_ids": row["input_ids"], "loss_mask": row["loss_mask"]}
    if entry.get("conversation"):
        fields["conversation_id"] = entry["conversation"]
    return fields


def _arrow_rows(files: Path, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    for batch in _batches(files, names):
        yield from batch.to_pylist()


def _batches(files: Path, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """The columns of rows, a few rows at a time however the files cut them."""
    for name in arrow_names(files, list(names)):
        for batch in read_batches(files / name):
            known = batch.select([column for column in COLUMNS if column in batch.schema.names])
            for start in range(0, known.num_rows, BATCH_ROWS):
                yield known.slice(start, BATCH_ROWS)
