"""A store with a quota: the stage that would go beyond it is stopped, what is whole is kept, more room resumes it."""

import httpx
import pytest

from shared.errors import StatusReason
from shared.schemas.job import JobStatus, Stage, StageStatus
from tests.support.gateway_process import gateway_process
from tests.support.wait import wait_until
from tests.support.worker_site import GENERATE, assert_whole

pytestmark = pytest.mark.data
ROWS = 40


def test_a_quota_stops_the_stage_and_more_of_it_resumes_while_the_api_answers(site):
    site.stub.delay_s = 0.5
    worker = site.start_worker(GENERATE, EYRIE_STORE_QUOTA_BYTES="200000")
    rows = [{"prompt": f"{'many words ' * 20} prompt-{number}"} for number in range(ROWS)]
    with gateway_process(site.folder, site.redis.url, store_quota_bytes="200000") as gateway:
        job_id = site.submit(rows, data={"concurrency": 4})
        record = site.wait_for(job_id, JobStatus.FAILED)
        assert record.status_reason == StatusReason.ARTIFACT_STORE
        assert "quota" in record.error.message
        assert "EYRIE_STORE_QUOTA_BYTES" in record.error.hint
        assert record.stage(Stage.PREPARE).status == StageStatus.SUCCEEDED
        assert httpx.get(f"{gateway.url}/v1/jobs/{job_id}").json()["status"] == "failed"
        assert httpx.get(f"{gateway.url}/readyz").status_code == 200
        assert 0 < len(site.stub.answered) < ROWS
        assert site.half_made() == []
        worker.terminate()
        wait_until(lambda: worker.poll() is not None, 20, what="the worker ends")
        site.start_worker(GENERATE, EYRIE_STORE_QUOTA_BYTES="50000000")
        again = site.wait_for(site.submit(rows, data={"concurrency": 4}), JobStatus.SUCCEEDED)
    assert again.stage(Stage.GENERATE).summary["taken_over"] > 0
    asked = [seen for seen in site.stub.chats() if again.id in seen.request_id]
    assert len(asked) == ROWS - again.stage(Stage.GENERATE).summary["taken_over"]
    assert_whole(site, again)


def test_a_stage_that_cannot_fit_is_refused_before_it_starts(site):
    site.start_worker(GENERATE, EYRIE_STORE_QUOTA_BYTES="800000")
    rows = [{"prompt": f"{'many words ' * 40} prompt-{number}"} for number in range(200)]
    record = site.wait_for(site.submit(rows), JobStatus.FAILED)
    assert record.status_reason == StatusReason.ARTIFACT_STORE
    assert record.error.where == "generate"
    assert "needs at least" in record.error.message
    assert site.stub.seen == []
