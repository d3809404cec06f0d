"""In which order a run lets go of its job, without Redis."""

from unittest.mock import Mock

import pytest

from services.worker.pipeline import JobRun
from shared.schemas.job import JobStatus
from shared.settings import Settings


@pytest.mark.parametrize(("wait_s", "order"), [(15.0, ["back_off", "release_run"]), (None, ["release_run", "enqueue"])])
def test_a_reconciler_that_looks_in_between_sees_no_attempt_that_need_not_wait(wait_s, order) -> None:
    run, calls = JobRun.__new__(JobRun), Mock()
    run.job_id, run.token, run.control = "job", "token", Mock(held=[])
    run.jobs = run.queue = calls
    run.settings = Settings()
    run._follow(Mock(status=JobStatus.RUNNING, attempt=2, retry_after_s=wait_s))
    assert [call[0] for call in calls.method_calls] == order
