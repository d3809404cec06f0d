"""A stage's time limit. The clock stands still while the stage loads a verifier: that has a limit of its own.

A stage says so with the events `VERIFIER_LOADING` and `VERIFIER_READY`.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

VERIFIER_LOADING = "verifier_loading"
VERIFIER_READY = "verifier_ready"


class StageClock:
    """Seconds that a stage has used.

    Args:
        limit_s: how many it may use.
        load_limit_s: how long the clock stands still for one load; what it takes beyond counts again.
        clock: seconds that only grow.
    """

    def __init__(self, limit_s: float, load_limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s, self.load_limit_s, self._clock = limit_s, load_limit_s, clock
        self._started = clock()
        self._loaded_s = 0.0
        self._loading_since: float | None = None

    def follow(self, event: Mapping[str, Any]) -> None:
        """Take notice of a stage's event."""
        if event.get("type") == VERIFIER_LOADING and self._loading_since is None:
            self._loading_since = self._clock()
        elif event.get("type") == VERIFIER_READY:
            self._loaded_s += self._loading_s()
            self._loading_since = None

    def used_s(self) -> float:
        """Seconds since the start, without loads."""
        return self._clock() - self._started - self._loaded_s - self._loading_s()

    def is_over(self) -> bool:
        """Tell whether the limit is used up."""
        return self.used_s() > self.limit_s

    def _loading_s(self) -> float:
        if self._loading_since is None:
            return 0.0
        return min(self._clock() - self._loading_since, self.load_limit_s)
