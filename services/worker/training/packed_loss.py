"""Makes the loss a mean over supervised positions, however rows are packed; everything else is speculators' own.

The library's training-time-test step s pairs the logits at position t with the target at t + s. Where rows are packed
one after the other, that target can lie in the next row: a row whose first tokens are supervised (a prompt shorter than
`ttt_steps`) would be measured against the row before it. And it averages the validation loss over packs, so that a pack
with few supervised positions, or none, weighs as much as a full one. Neither happens here:

- in: the loss mask of a pack, [1, T]; `numbered_mask` turns each 1 into the position's own number in its row, so that
  `compute_metrics` can leave out the first s positions of every row in step s;
- in validation, `weigh_by_positions` replaces mean and count 1 by the sum and the number of supervised positions.
"""

from collections.abc import Mapping
from typing import Any

import torch
from speculators.models.eagle3 import core
from speculators.models.eagle3.metrics import compute_metrics as library_metrics


def install() -> None:
    """Have speculators compute its losses through this module."""
    core.compute_metrics = compute_metrics


def numbered_mask(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch, with the number of its position in its row (from 1) for every supervised position in `loss_mask`.

    Args:
        batch: a pack as the library collates it: `loss_mask` and `position_ids` [1, T]; the latter count from 1.
    """
    return {**batch, "loss_mask": (batch["loss_mask"] != 0) * batch["position_ids"]}


def compute_metrics(
    logits: torch.Tensor,
    targets: torch.Tensor,
    loss_mask: torch.Tensor,
    prev_correct: torch.Tensor,
    ttt_step: int,
    ttt_step_loss_decay: float,
    loss_config: Any = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The library's loss and metrics of one step, without positions whose proposal began in the row before.

    Args:
        loss_mask: as `numbered_mask` leaves it, [1, T].
        prev_correct: a copy of it before the first step; 1 where all earlier steps were right after that. Changed.
    """
    if ttt_step == 0:
        prev_correct.clamp_(max=1)
    mask = (loss_mask > ttt_step).to(loss_mask.dtype)
    result: tuple[torch.Tensor, dict[str, torch.Tensor]] = library_metrics(
        logits, targets, mask, prev_correct, ttt_step, ttt_step_loss_decay, loss_config=loss_config
    )
    return result


def weigh_by_positions(metrics: dict[str, torch.Tensor]) -> None:
    """Turn each step's mean loss over one pack into the sum over its supervised positions, and their number. In place.

    The pack's `loss` is dropped: it has no number of its own; `total_loss` adds up the steps' instead.
    """
    for name in ("loss_sum", "loss_total"):
        metrics.pop(name, None)
    step = 0
    while (positions := metrics.get(f"full_acc_{step}_total")) is not None:
        metrics[f"loss_{step}_sum"] = metrics[f"loss_{step}_sum"] * positions
        metrics[f"loss_{step}_total"] = positions
        step += 1


def total_loss(values: Mapping[str, float]) -> float:
    """The loss of all steps together: `loss_0` + `loss_1` + ..."""
    return sum(value for name, value in values.items() if name.removeprefix("loss_").isdigit())
