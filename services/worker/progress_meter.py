"""Turns what a stage reports into the progress that people see: a rate, an estimate, and counts that never fall."""

import time
from collections import deque
from typing import Any

from shared.schemas.job import Progress, now

RATE_WINDOW_S = 30.0


class ProgressMeter:
    """Progress of one run of a stage.

    Args:
        reached: what an earlier run of the same stage of the same job had reached; less is never shown.
    """

    def __init__(self, reached: Progress | None = None) -> None:
        self.points: deque[tuple[float, float, float]] = deque()
        self._reached = reached
        self._resumed_from: float | None = None
        self._fraction = reached.fraction if reached else 0.0

    def measure(self, event: dict[str, Any]) -> Progress:
        """Make a `Progress` of a stage's progress event; its rate is that of the last half minute."""
        done, total, moment = float(event["done"]), float(event["total"]), time.monotonic()
        self.points.append((moment, done, float(event.get("tokens", 0))))
        while len(self.points) > 2 and moment - self.points[0][0] > RATE_WINDOW_S:
            self.points.popleft()
        (first_time, first_done, first_tokens) = self.points[0]
        rate = (done - first_done) / (moment - first_time) if moment > first_time and done > first_done else None
        metrics = {
            name: float(value)
            for name, value in event.items()
            if name not in ("done", "total") and isinstance(value, int | float) and not isinstance(value, bool)
        }
        if moment > first_time and event.get("tokens", 0) > first_tokens:
            metrics.setdefault("tokens_per_s", (float(event["tokens"]) - first_tokens) / (moment - first_time))
        shown = self._shown(done, total, str(event["unit"]))
        return Progress(
            done=shown,
            total=total,
            unit=str(event["unit"]),
            rate=rate,
            eta_s=(total - done) / rate if rate else None,
            metrics=metrics,
            activity=None if event.get("activity") is None else str(event["activity"]),
            fraction=self._fraction,
            resumed_from=self._resumed_from,
            updated_at=now(),
        )

    def _shown(self, done: float, total: float, unit: str) -> float:
        """The most that any run has reached."""
        shown = done
        if self._reached is not None:
            self._resumed_from = done if self._resumed_from is None else self._resumed_from
            if self._reached.unit == unit:
                shown = max(done, min(self._reached.done, total))
        if total > 0:
            self._fraction = max(self._fraction, min(shown / total, 1.0))
        return shown
