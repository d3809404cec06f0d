"""How long the verifier takes: requests by kind and outcome, summed up before they go to the service's figures."""

import time
from collections.abc import Callable, Mapping

from shared.figures import VERIFIER_SECONDS, Tally

INTERVAL_S = 2.0


class RequestTimes:
    """Collects times and hands them on, every `INTERVAL_S` at most and at `flush`.

    Args:
        send: takes amounts by field, as `Tally` has them.
    """

    def __init__(self, send: Callable[[Mapping[str, float]], None]) -> None:
        self._send, self._tally, self._sent_at = send, Tally(), time.monotonic()

    def add(self, kind: str, outcome: str, seconds: float) -> None:
        """Count a request that was answered, or failed, after so many seconds."""
        self._tally.observe(VERIFIER_SECONDS, [kind, outcome], seconds)
        if time.monotonic() - self._sent_at >= INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Hand on what is there."""
        if self._tally.amounts:
            self._send(self._tally.amounts)
        self._tally, self._sent_at = Tally(), time.monotonic()
