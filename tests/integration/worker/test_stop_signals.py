"""A worker that is told to stop ends, whatever it does at that moment: also where Python drops RQ's own exception."""

import pytest

from shared.schemas.job import JobStatus
from tests.support.wait import wait_until
from tests.support.worker_site import Site

DEAF = """
import os, signal
from rq.worker import Worker
from services.worker import main

def strike(*_):
    os.kill(os.getpid(), signal.SIGTERM)

def struck_before(name):
    plain = getattr(Worker, name)
    setattr(Worker, name, lambda *arguments: (strike(), plain(*arguments))[1])

main.JobWorker._shutdown = lambda self: None
"""
STRIKES = {
    "dequeued": 'struck_before("get_redis_server_version")',
    "not forked yet": 'struck_before("fork_work_horse")',
    "just forked": "fork = os.fork; os.fork = lambda: (pid := fork()) and (strike(), pid)[1]",
}

AT_BIRTH = """
import os, signal
from services.worker import main

def fork():
    os.fork = plain  # once
    child = plain()
    if child:
        os.kill(child, signal.SIGTERM)
    return child

plain, os.fork = os.fork, fork
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # so that the child does not run yet
main.main()
"""


@pytest.mark.parametrize("moment", STRIKES)
def test_a_worker_that_has_just_taken_a_job_ends_and_the_job_goes_on_elsewhere(site: Site, moment: str) -> None:
    gate = site.folder / "gate"
    job_id = site.submit(metadata={"train": f"hold {gate}"})
    worker = site.start_worker(code=("-c", f"{DEAF}\n{STRIKES[moment]}\nmain.main()"))
    wait_until(lambda: worker.poll() is not None, 60, what="the worker ends")
    assert worker.returncode == 0
    gate.touch()
    site.queue.enqueue(job_id, site.jobs.get(job_id).attempt)  # what the reconciler does
    site.start_worker()
    site.wait_for(job_id, JobStatus.SUCCEEDED)


def test_a_job_that_is_told_to_stop_before_its_process_has_run_is_stopped(site: Site) -> None:
    gate = site.folder / "gate"
    job_id = site.submit(metadata={"train": f"hold {gate}"})
    site.start_worker(code=("-c", AT_BIRTH))
    wait_until(lambda: site.queue.queue.failed_job_registry.count, 60, what="the job's process ends")
    gate.touch()
    site.queue.enqueue(job_id, site.jobs.get(job_id).attempt)  # what the reconciler does
    site.wait_for(job_id, JobStatus.SUCCEEDED)


def test_a_worker_that_waits_for_a_job_ends(site: Site) -> None:
    worker = site.start_worker(code=("-c", f"{DEAF}\nmain.main()"))
    wait_until(lambda: site.jobs.redis.scard("eyrie:workers"), 60, what="the worker waits")
    worker.terminate()
    wait_until(lambda: worker.poll() is not None, 60, what="the worker ends")
    assert worker.returncode == 0
