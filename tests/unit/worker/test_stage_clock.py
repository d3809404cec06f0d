"""A stage's time limit counts the stage's own time, not a verifier's loading."""

import pytest

from services.worker.stage_clock import VERIFIER_LOADING, VERIFIER_READY, StageClock


@pytest.fixture
def time():
    return [0.0]


@pytest.fixture
def clock(time):
    return StageClock(limit_s=10, load_limit_s=100, clock=lambda: time[0])


def test_a_stage_is_over_when_its_limit_is_used_up(time, clock):
    time[0] = 10
    assert not clock.is_over()
    time[0] = 10.1
    assert clock.is_over()


def test_loading_does_not_count_each_time_it_happens(time, clock):
    for _ in range(3):
        time[0] += 1
        clock.follow({"type": VERIFIER_LOADING})
        time[0] += 50
        assert not clock.is_over()
        clock.follow({"type": "progress"})
        clock.follow({"type": VERIFIER_READY})
    assert clock.used_s() == 3


def test_a_load_that_never_ends_counts_after_its_own_limit(time, clock):
    clock.follow({"type": VERIFIER_LOADING})
    time[0] = 105
    clock.follow({"type": VERIFIER_LOADING})
    assert not clock.is_over()
    time[0] = 111
    assert clock.is_over()
