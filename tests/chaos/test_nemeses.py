"""Jobs while things break: whatever happens, no accepted job is lost, run twice at once, or half published.

`make test` strikes with most of them, `make chaos` with all and often (EYRIE_CHAOS=full). A failure names its seed:
EYRIE_CHAOS_SEED=N makes the same choices again.
"""

import contextlib
import json
import os
import random
from pathlib import Path

import pytest

from tests.support.chaos import nemesis
from tests.support.chaos.checker import violations
from tests.support.chaos.driver import Driver
from tests.support.chaos.plain_rq import lost_jobs
from tests.support.chaos.site import ChaosSite
from tests.support.chaos.volume import small_volume
from tests.support.verifier_stub import VerifierStub

FULL = os.environ.get("EYRIE_CHAOS") == "full"
SEED = int(os.environ.get("EYRIE_CHAOS_SEED", "1"))
RESULTS = os.environ.get("EYRIE_CHAOS_RESULTS")
# How often each strikes: in `make test`, where 0 leaves it to the other, and in `make chaos`.
STRIKES = {
    "sigterm_after_dequeue": (4, 200),
    "kill_processes": (2, 24),
    "freeze_and_thaw": (1, 6),
    "redis_restarts": (0, 10),
    "redis_away": (1, 2),
    "redis_emptied": (1, 10),
    "gateways_killed": (1, 10),
    "disk_full": (1, 8),
    "many_jobs_few_workers": (0, 50),
    "verifier_fails": (0, 12),
    "gpus_contended": (1, 8),
    "clocks_off": (0, 6),
}
CONTROL_STRIKES = (12, 40)


@pytest.mark.chaos
@pytest.mark.parametrize("name", [name for name, strikes in STRIKES.items() if strikes[FULL]])
def test_no_promise_is_broken_by(name, tmp_path):
    strikes = STRIKES[name][FULL]
    (tmp_path / "exchange").mkdir()
    with contextlib.ExitStack() as stack:
        stub = stack.enter_context(VerifierStub(tmp_path / "exchange"))
        volume = stack.enter_context(small_volume(tmp_path / "volume")) if name == "disk_full" else None
        site = ChaosSite(tmp_path, stub, volume=volume)
        try:
            with Driver(site, SEED) as driver:
                counts = getattr(nemesis, name)(driver, random.Random(SEED), strikes)
                ended = driver.wait_for_end()
                found = violations(driver, ended)
        finally:
            left = site.close()
    found += [f"left behind: {line}" for line in left]
    keep(name, counts=counts, jobs=len(ended), violations=found)
    assert sum(counts.values()) >= strikes
    assert found == [], f"seed {SEED}, {tmp_path}"


@pytest.mark.chaos
def test_plain_rq_loses_jobs_by_the_same_strike(tmp_path):
    strikes, lost = lost_jobs(tmp_path, random.Random(SEED), CONTROL_STRIKES[FULL])
    keep("control_plain_rq", counts={"sigterm": strikes}, lost=lost)
    assert lost > 0


def keep(name: str, **figures: object) -> None:
    """Leave figures for the line that `make chaos` ends with."""
    if RESULTS:
        Path(RESULTS, f"{name}.json").write_text(json.dumps(figures))
