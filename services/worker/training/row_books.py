"""What became of every row in training: read by the trainer at least once, or not, and why not.

The library packs rows anew in every epoch. With several ranks it leaves out the last few rows of an epoch that do not
fill all of them, and `train.max_steps` can end a run before its first epoch does.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from shared.schemas.accounting import Accounting

Reached = NDArray[np.bool_]


def trained_batches(batches_of: Callable[[int], Sequence[Any]], steps: int) -> Iterator[Any]:
    """The batches of a run's first `steps` steps, over its epochs."""
    epoch = 0
    while steps > 0 and (batches := batches_of(epoch)[:steps]):
        yield from batches
        steps -= len(batches)
        epoch += 1


def mark_reached(batches: Iterator[Any], rows: int) -> Reached:
    """Mark the rows that are in any of the batches (arrays of row numbers); stops when all are."""
    reached = np.zeros(rows, dtype=np.bool_)
    for batch in batches:
        reached[batch] = True
        if reached.all():
            break
    return reached


def on_any_rank(reached: Reached) -> Reached:
    """Combine what the ranks have reached; every rank must call it."""
    flags = torch.from_numpy(reached.astype(np.int32)).to(torch.accelerator.current_accelerator())
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return flags.cpu().numpy().astype(np.bool_)


def row_accounting(reached: Sequence[bool], learnable: Sequence[bool]) -> Accounting:
    """The books of the train stage, over both splits.

    Args:
        reached: by row, whether it was trained or validated on.
        learnable: by row, whether a supervised token is left of it within `train.pack_length`.
    """
    cut_off = sum(not able for able in learnable)
    missed = sum(able and not read for read, able in zip(reached, learnable, strict=True))
    rejected = {"cut_off": cut_off, "not_reached": missed}
    return Accounting(
        unit="rows",
        taken=len(learnable),
        kept=len(learnable) - cut_off - missed,
        rejected={reason: count for reason, count in rejected.items() if count},
    )
