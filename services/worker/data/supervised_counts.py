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
from numpy.typing import NDArray

from services.worker.data.rows import read_jsonl
from services.worker.data.vocabulary import Counts
from shared.data.arrow import read_batches
from shared.data.ready_folder import arrow_names
from shared.errors import UserError

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
    names = arrow_names(dataset, [path.name for path in dataset.iterdir()])
    for columns in (batch for name in names for batch in read_batches(dataset / name)):
        batch = list(islice(entries, columns.num_rows))
        lengths, ids = _flat(columns["input_ids"])
        supervised = _flat(columns["loss_mask"])[1] == 1
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
    return column.value_lengths().to_numpy(zero_copy_only=False), column.flatten().to_numpy(zero_copy_only=False)
