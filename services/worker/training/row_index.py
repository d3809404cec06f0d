"""Which rows of a captured dataset the trainer can learn from, read from its index without torch.

In: `rows.jsonl` of the capture stage, one line a row in the dataset's order. The loader cuts a row to `pack_length`
positions, and a row's position 0 is no target; so a row counts if one of its ids 1 to `pack_length` is supervised.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from shared.errors import UserError
from shared.schemas.spec import TrainSpec

INDEX_NAME = "rows.jsonl"


def first_supervised(loss_mask: Sequence[int]) -> int | None:
    """Index of the first token that is a target in training, or None."""
    return next((index for index, masked in enumerate(loss_mask) if masked and index), None)


def learnable_rows(dataset: Path, pack_length: int) -> dict[str, list[bool]]:
    """For each row of both splits (`train`, `val`), in order: whether anything supervised is left of it in a pack."""
    rows: dict[str, list[bool]] = {"train": [], "val": []}
    with (dataset / INDEX_NAME).open(encoding="utf-8") as index:
        for line in index:
            entry = json.loads(line)
            first = entry["first_supervised"]
            rows[entry["split"]].append(first is not None and first <= pack_length)
    return rows


def require_learnable_rows(dataset: Path, train: TrainSpec) -> None:
    """Make sure, before any GPU is leased, that both splits have something supervised and every rank has rows.

    Raises:
        UserError: training or validation would have no supervised token, or a GPU no row.
    """
    if not (dataset / INDEX_NAME).is_file():
        return  # the stage itself says what it misses
    for split, rows in learnable_rows(dataset, train.pack_length).items():
        what = {"train": "training", "val": "held-out"}[split]
        if not any(rows):
            raise UserError(
                f"none of the {len(rows)} {what} rows has a supervised token in its first {train.pack_length}",
                where="/train/pack_length",
                hint="raise train.pack_length, or look at the rows' masks",
            )
        if len(rows) < train.gpus:
            raise UserError(
                f"{train.gpus} GPUs cannot share {len(rows)} {what} rows: each of them needs one at a time",
                where="/train/gpus",
                hint="lower train.gpus, give more prompts, or raise data.val_ratio",
            )
