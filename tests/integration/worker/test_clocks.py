"""Processes whose wall clocks are ten minutes off, or set back: no negative duration, and nobody is taken for dead."""

import httpx
import pytest

from shared.fleet import Fleet
from shared.gpu_leases import lease_key
from shared.schemas.job import JobStatus, Stage
from tests.support.fake_clock import SUPPORTED, FakeClock
from tests.support.gateway_process import gateway_process
from tests.support.wait import wait_until

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="libfaketime's wheel holds a library for x86_64 only")
RENEWALS = 4


def wait_for_renewals(site, key, count=RENEWALS):
    """Wait until a lease was prolonged so often: longer than it lasts by itself."""
    seen, last = 0, site.jobs.redis.pttl(key)

    def look():
        nonlocal seen, last
        left = site.jobs.redis.pttl(key)
        assert left > 0, "the lease is held all the time"
        seen, last = seen + (left > last), left
        return seen >= count

    wait_until(look, 60, 0.02, what=f"{key} is renewed {count} times")


def assert_forward(job):
    """No duration of a job, as people see it, is negative, and nothing ends before it began."""
    assert job["started_at"] >= job["created_at"]
    assert job["finished_at"] is None or job["finished_at"] >= job["started_at"]
    for stage in job["stages"]:
        assert (stage["seconds"] or 0) >= 0
        if stage["finished_at"] is not None:
            assert stage["finished_at"] >= stage["started_at"], stage["name"]


def test_clocks_that_are_off_or_set_back_neither_kill_a_run_nor_turn_a_duration(site):
    worker, gateway = FakeClock(site.folder, "+10m"), FakeClock(site.folder, "-5m")
    settings = {"run_lease_s": "3", "reconcile_interval_s": "0.2"}
    with (
        gateway_process(site.folder, site.redis.url, gateway.environment(), **settings) as process,
        httpx.Client(base_url=process.url, timeout=30) as http,
    ):
        site.start_worker(gpus="fake-0", **worker.environment())
        go_on = site.folder / "go-on"
        job_id = site.submit(metadata={"train": f"hold {go_on}"}, train={"gpus": 1})
        wait_until(lambda: list(site.folder.glob("go-on.reached.*")), 60, what="the stage runs")
        wait_for_renewals(site, f"eyrie:run:{job_id}")
        worker.set("-10m")
        wait_for_renewals(site, lease_key("fake-0"))
        assert_forward(http.get(f"/v1/jobs/{job_id}").json())
        assert len(Fleet(site.jobs.redis).workers()) == 1
        go_on.touch()
        record = site.wait_for(job_id, JobStatus.SUCCEEDED)
        assert_forward(http.get(f"/v1/jobs/{job_id}").json())
    assert record.attempt == 1
    assert [stage.attempt for stage in record.stages] == [1] * len(Stage)
