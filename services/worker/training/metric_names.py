"""Turns what speculators logs for a training step into flat numbers."""

import math
from collections.abc import Mapping
from typing import Any

PROFILE_KEPT = ("tokens_per_s", "fetch_ms", "step_ms", "fetch_frac")


def flat_train_metrics(logged: Mapping[str, Any], samples: int, ranks: int) -> dict[str, float]:
    """Loss, accuracies, learning rate and speed of one step.

    Args:
        logged: the library's record: `train`, `profile`, `lr` (one number, or one an optimizer).
        samples: rows in this rank's batch.
        ranks: processes that train; speeds are for all of them.
    """
    values = {name: float(value) for name, value in logged["train"].items()}
    rate = logged["lr"]
    if isinstance(rate, Mapping):
        values.update({f"lr_{name.lower()}": float(value) for name, value in rate.items()})
    else:
        values["lr"] = float(rate)
    profile = logged.get("profile") or {}
    values.update({name: float(profile[name]) for name in PROFILE_KEPT if name in profile})
    if "tokens_per_s" in values:
        values["tokens_per_s"] *= ranks
    if values.get("step_ms"):
        values["samples_per_s"] = samples * ranks * 1000.0 / values["step_ms"]
    return values


def is_finite(value: float) -> bool:
    """Whether a number is neither NaN nor infinite."""
    return math.isfinite(value)
