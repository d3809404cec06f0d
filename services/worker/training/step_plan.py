"""How many optimizer steps a run has: known before the first one, so that progress and schedule are right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Packing a row takes about 0.1 ms: with more rows, counting every epoch would hold up the first step by half a minute.
EXACT_ROWS = 300_000


@dataclass(frozen=True)
class StepPlan:
    """`epochs` that are entered at all, and `total` steps in them."""

    epochs: int
    total: int


def plan_steps(batches_of: Callable[[int], Sequence[Any]], rows: int, epochs: int, max_steps: int | None) -> StepPlan:
    """Count the steps of every epoch (packing differs by epoch) until `max_steps` is reached.

    The library enters every epoch even when `max_steps` is used up, and trains one step in each; with the epochs of
    this plan it does not. For very many rows without `max_steps` the first epoch stands for all, as in the library.

    Args:
        batches_of: the batches of an epoch.
        rows: rows in an epoch.
    """
    if max_steps is None and rows * epochs > EXACT_ROWS:
        return StepPlan(epochs, len(batches_of(0)) * epochs)
    total = 0
    for epoch in range(epochs):
        total += len(batches_of(epoch))
        if max_steps is not None and total >= max_steps:
            return StepPlan(epoch + 1, max_steps)
    return StepPlan(epochs, total)
