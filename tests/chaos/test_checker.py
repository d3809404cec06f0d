"""What the checker of the chaos runs takes for a step back, and what not."""

from types import SimpleNamespace

import pytest

from tests.support.chaos.checker import _only_forward
from tests.support.chaos.driver import Look


def look(asked_at: float, at: float, percent: float) -> Look:
    return Look(asked_at, at, "job_1", "running", percent, None, 1, frozenset(), 0.0)


@pytest.mark.parametrize(
    ("begun", "ended", "falls"),
    [(0.5, 0.6, True), (0.9, 1.0, False), (1.2, 1.3, False), (2.5, 2.6, False), (3.2, 3.3, False), (3.6, 3.7, True)],
)
def test_a_job_may_fall_back_only_where_redis_was_emptied_meanwhile(begun: float, ended: float, falls: bool) -> None:
    """An answer is as old as its question: what it says may have been true before Redis was emptied, or after."""
    driver = SimpleNamespace(history=[look(1.0, 1.5, 43.8), look(3.0, 3.5, 43.0)], restarts=[(begun, ended)])
    assert bool(list(_only_forward(driver))) == falls
