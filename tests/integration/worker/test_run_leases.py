"""A run that lives is not taken for dead: its lease is renewed whatever it does, and soon back in an emptied Redis."""

import threading
import time

import pytest

from services.worker.run_control import CHECK_INTERVAL_S, RunControl
from shared import attempts
from shared.artifact_store import LocalArtifactStore
from shared.ids import new_id
from shared.schemas.job import JobStatus
from tests.support.stage_runs import prompts
from tests.support.wait import wait_until

LONG_LEASE_S = 600  # a third of it, after which it is renewed by itself, is longer than any test


@pytest.fixture
def control(site):
    """The tie of a run to a job that it has just begun."""
    job_id, token = site.submit(prompts(3)), new_id("run")
    site.jobs.update(job_id, lambda record: attempts.begin(record, 1, token, "here"))
    tie = RunControl(site.jobs, job_id, token, LONG_LEASE_S, threading.Event())
    tie.check()
    assert site.jobs.run_token(job_id) == token
    return tie


@pytest.mark.parametrize("busy", [False, True])
def test_a_lease_that_an_emptied_redis_lost_comes_back_within_moments(site, control, busy):
    site.jobs.redis.flushall()
    if busy:
        with control.kept_alive():
            wait_until(lambda: site.jobs.run_token(control.job_id) == control.token, 10, what="the lease is back")
    else:
        control.wait(3 * CHECK_INTERVAL_S)
        assert site.jobs.run_token(control.job_id) == control.token
    assert site.jobs.get(control.job_id).token == control.token


def test_a_run_lives_while_it_looks_at_very_many_files_of_stages_that_it_reuses(site, monkeypatch):
    worker = site.start_worker()
    site.wait_for(site.submit(prompts(3)), JobStatus.SUCCEEDED)
    worker.terminate()
    worker.wait(30)
    job_id, lease_s, seen = site.submit(prompts(3)), 1, []
    look = LocalArtifactStore.damages

    def look_slowly(self, root, files):
        if root.startswith("stages/train/"):
            time.sleep(2.5 * lease_s)
            seen.append(site.jobs.run_token(job_id))
        return look(self, root, files)

    monkeypatch.setattr(LocalArtifactStore, "damages", look_slowly)
    record = site.run_here(job_id, lease_s)
    assert (record.status, record.attempt) == (JobStatus.SUCCEEDED, 1)
    assert len(seen) == 2
    assert None not in seen
