"""Workers with unequal GPUs on one queue: a job goes to one that has enough, and uses up no attempt on the way."""

from services.gateway.reconciler import Reconciler
from shared.fleet import Fleet
from shared.schemas.job import JobStatus
from shared.settings import Settings
from tests.support.wait import wait_until

WAIT_S = 60


def test_a_worker_with_too_few_gpus_leaves_a_job_to_one_that_has_enough(site):
    fleet, reconciler = Fleet(site.jobs.redis), Reconciler(site.jobs, site.queue, Settings())
    site.start_worker(gpus="fake-0")
    small = wait_until(fleet.workers, WAIT_S, what="the small worker is there")[0]
    busy = small.model_copy(update={"id": "busy", "host": "large-host", "gpus": [*small.gpus] * 2})
    fleet.register(busy, life_s=600)  # takes nothing

    job_id = site.submit(train={"gpus": 2})
    wait_until(lambda: site.jobs.get(job_id).retry_after_s, WAIT_S, what="the small worker leaves the job in line")
    left = site.jobs.get(job_id)
    assert (left.status, left.attempt, left.attempts) == (JobStatus.QUEUED, 1, [])
    assert left.status_message.startswith("waits for a worker with 2 GPUs, such as large-host;")

    site.start_worker(gpus="fake-1,fake-2")
    wait_until(lambda: len(fleet.workers()) == 3, WAIT_S, what="the large worker is there")

    def succeeded():
        reconciler.round()
        return site.jobs.get(job_id).status == JobStatus.SUCCEEDED

    wait_until(succeeded, WAIT_S, 0.5, what="the large worker does the job")
    record = site.jobs.get(job_id)
    assert (record.attempt, record.status_reason) == (1, None)
