"""Counts the supervised tokens of a laid-out dataset, by split: what the draft's vocabulary is chosen from.

In: the capture stage's `dataset` folder. Out: for each split how often each of the verifier's V tokens is learnt. Rows
are read in batches from memory-mapped files: a million of them need no more memory than a thousand.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets import load_from_disk
from numpy.typing import NDArray

from services.worker.data.rows import read_jsonl
from services.worker.data.vocabulary import Counts
from shared.errors import UserError

BATCH_ROWS = 1000
SPLITS = ("train", "val")


@dataclass
class SupervisedCounts:
    """Counts per split ([V]) and the number of rows that they come from."""

    target_size: int
    rows: int = 0
    by_split: dict[str, Counts] = field(init=False)

    def __post_init__(self) -> None:
        self.by_split = {split: np.zeros(self.target_size, dtype=np.int64) for split in SPLITS}


def count_supervised(dataset: Path, target_size: int) -> SupervisedCounts:
    """Count each split's supervised tokens: those under the loss mask, and each answer's last id where it is known.

    Raises:
        UserError: a row holds an id that the verifier's vocabulary does not have.
    """
    counts = SupervisedCounts(target_size)
    entries = read_jsonl(dataset / "rows.jsonl")
    for table in load_from_disk(str(dataset)).with_format("arrow").iter(batch_size=BATCH_ROWS):
        batch = list(islice(entries, table.num_rows))
        lengths, ids = _flat(table["input_ids"])
        supervised = _flat(table["loss_mask"])[1] == 1
        supervised[(np.cumsum(lengths) - lengths)[lengths > 0]] = False  # no state comes before a row's first token
        _count(counts, batch, np.repeat(np.arange(len(batch)), lengths)[supervised], ids[supervised])
        ends = [place for place, entry in enumerate(batch) if entry["last_id"] is not None]
        _count(counts, batch, ends, [batch[place]["last_id"] for place in ends])
        counts.rows += len(batch)
    return counts


def _count(counts: SupervisedCounts, batch: list[dict[str, Any]], rows: Iterable[int], tokens: Iterable[int]) -> None:
    """Add `tokens`, each of which stands in the row of `batch` that `rows` names beside it."""
    rows, ids = np.asarray(rows, dtype=np.int64), np.asarray(tokens, dtype=np.int64)
    outside = np.flatnonzero((ids < 0) | (ids >= counts.target_size))
    if outside.size:
        raise UserError(
            f"token id {int(ids[outside[0]])} is outside the verifier's vocabulary of {counts.target_size}",
            where=f"row {batch[int(rows[outside[0]])]['row_id']}",
        )
    for split in SPLITS:
        here = np.array([entry["split"] == split for entry in batch], dtype=np.bool_)[rows]
        counts.by_split[split] += np.bincount(ids[here], minlength=counts.target_size)


def _flat(column: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row lengths and values of a column of lists."""
    lists = column.combine_chunks()
    return lists.value_lengths().to_numpy(zero_copy_only=False), lists.flatten().to_numpy(zero_copy_only=False)
