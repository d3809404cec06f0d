"""The real trainer, killed with -9 in mid-training under the settings that a deployment has: another worker goes on."""

import time
from typing import Any

import pytest

from tests.chaos.test_nemeses import SEED, keep
from tests.support import synthetic_rows
from tests.support.chaos.checker import violations
from tests.support.chaos.driver import TERMINAL, Driver
from tests.support.chaos.nemesis import victims
from tests.support.chaos.site import ChaosSite
from tests.support.verifier_stub import VerifierStub
from tests.support.wait import wait_until

STAGES = "tests.support.chaos_train_stages"
DRAFT = {
    "vocab_size": 56,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 64,
}
TRAIN = {"pack_length": 256, "epochs": 400, "num_workers": 0, "lr": 1e-4, "checkpoint_every_s": 2}
LAYERS = list(synthetic_rows.AUX_LAYERS)


@pytest.mark.chaos
@pytest.mark.slow
def test_a_killed_training_goes_on_within_a_minute_from_a_kept_step(tmp_path):
    (tmp_path / "exchange").mkdir()
    with VerifierStub(tmp_path / "exchange") as stub:
        site = ChaosSite(tmp_path, stub, times={})
        site.verifier = synthetic_rows.write_verifier(tmp_path / "synthetic" / "tiny-verifier")  # as the stub is called
        try:
            with Driver(site, SEED) as driver:
                site.start_gateway()
                worker = site.start_worker(STAGES)
                job_id = driver.submit(draft=DRAFT, train=TRAIN, capture={"layer_ids": LAYERS})
                wait_until(lambda: _kept_point(driver, job_id), 120, 0.5, what="a resume point is kept")
                kept = int(_events(driver, job_id, "checkpoint")[-1]["data"]["step"])
                other = site.start_worker(STAGES)
                for process in victims(worker, "all"):
                    process.kill()
                killed = time.monotonic()
                begun = wait_until(lambda: _second_start(driver, job_id), 300, 0.2, what="the successor trains")
                wait_until(lambda: _step_after(driver, job_id, begun), 300, 0.2, what="the successor takes a step")
                seconds = time.monotonic() - killed
                driver.ask("POST", f"/v1/jobs/{job_id}/cancel")
                ended = driver.wait_for_end()
                assert other.poll() is None
                found = violations(driver, ended)
        finally:
            left = site.close()
    started = int(begun["data"]["step"])
    keep("resume", seconds=round(seconds, 1), from_step=started, kept=kept)
    assert found + left == []
    assert started >= kept > 0
    assert seconds <= 60


def _events(driver: Driver, job_id: str, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = driver.ask("GET", f"/v1/jobs/{job_id}/events?limit=200{after}")
        found.extend(event for event in page["data"] if event["type"] == kind)
        if not page["has_more"]:
            return found
        after = f"&after={page['data'][-1]['id']}"


def _kept_point(driver: Driver, job_id: str) -> bool:
    job = driver.job(job_id)
    assert job["status"] not in TERMINAL, job["error"]
    return bool(_events(driver, job_id, "checkpoint"))


def _second_start(driver: Driver, job_id: str) -> dict[str, Any] | None:
    starts = _events(driver, job_id, "training_started")
    return starts[1] if len(starts) > 1 else None


def _step_after(driver: Driver, job_id: str, begun: dict[str, Any]) -> bool:
    return any(event["id"] > begun["id"] for event in _events(driver, job_id, "metric"))
