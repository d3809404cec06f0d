"""Waiting for a condition instead of for time."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_until(
    condition: Callable[[], Value], timeout_s: float = 60.0, interval_s: float = 0.05, what: str = ""
) -> Value:
    """Ask until the answer is true, and return it.

    Raises:
        AssertionError: it was not true within `timeout_s`.
    """
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(interval_s)
