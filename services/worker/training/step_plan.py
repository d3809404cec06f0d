"""How many optimizer steps a run has: known before the first one, so that progress and schedule are exact."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StepPlan:
    """`epochs` that are entered at all, and `total` steps in them."""

    epochs: int
    total: int


def plan_steps(batches_of: Callable[[int], Sequence[Any]], epochs: int, max_steps: int | None) -> StepPlan:
    """Count the steps of every epoch (packing differs by epoch) until `max_steps` is reached.

    The library enters every epoch even when `max_steps` is used up, and trains one step in each; with the epochs of
    this plan it does not.
    """
    total = 0
    for epoch in range(epochs):
        total += len(batches_of(epoch))
        if max_steps is not None and total >= max_steps:
            return StepPlan(epoch + 1, max_steps)
    return StepPlan(epochs, total)
