"""What the API shows of a job: times never negative, progress never complete before the job is."""

from datetime import timedelta

import pytest

from services.gateway.job_view import STAGE_SHARE, job_view
from shared.presets import resolve
from shared.schemas.job import JobRecord, JobStatus, Progress, Stage, StageStatus, now


@pytest.fixture
def record() -> JobRecord:
    moment = now()
    return JobRecord(id="job_x", spec=resolve({"data": {"dataset": "ds_x"}}), created_at=moment, updated_at=moment)


def test_shares_of_all_stages_add_up_to_the_job() -> None:
    assert set(STAGE_SHARE) == set(Stage)
    assert sum(STAGE_SHARE.values()) == 100


def test_progress_counts_finished_stages_and_the_running_ones_part(record: JobRecord) -> None:
    record.status = JobStatus.RUNNING
    record.stage(Stage.PREPARE).status = StageStatus.REUSED
    record.stage(Stage.GENERATE).status = StageStatus.RUNNING
    record.stage(Stage.GENERATE).progress = Progress(done=5, total=10, unit="rows", updated_at=now())
    progress = job_view(record).progress
    assert (progress.percent, progress.stage) == (
        STAGE_SHARE[Stage.PREPARE] + STAGE_SHARE[Stage.GENERATE] / 2,
        "generate",
    )


def test_only_a_job_that_succeeded_is_complete(record: JobRecord) -> None:
    for stage in record.stages:
        stage.status = StageStatus.SUCCEEDED
    record.status = JobStatus.RUNNING
    assert job_view(record).progress.percent < 100
    record.status = JobStatus.SUCCEEDED
    assert job_view(record).progress.percent == 100


@pytest.mark.parametrize("minutes", [-10, 10])
def test_clocks_that_differ_give_no_negative_duration(record: JobRecord, minutes: int) -> None:
    record.started_at = record.created_at + timedelta(minutes=minutes)
    for finished in (None, record.created_at - timedelta(minutes=20)):
        record.finished_at = finished
        durations = job_view(record).durations
        assert min(durations.queued_s, durations.total_s, durations.running_s or 0) >= 0


def test_a_place_in_line_is_shown_only_while_the_job_waits(record: JobRecord) -> None:
    assert job_view(record, 3).queue.position == 3
    record.status = JobStatus.RUNNING
    assert job_view(record, 3).queue.position is None
