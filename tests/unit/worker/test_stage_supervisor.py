"""Progress as people read it, and results of stages that left none."""

import pytest

from services.worker import progress_meter
from services.worker.progress_meter import ProgressMeter
from services.worker.stage_run import STORE_UNUSABLE, StageResult, StageRun
from services.worker.stage_supervisor import _read_result
from shared.errors import StatusReason
from shared.schemas.job import Stage
from tests.support.stage_runs import job_spec


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress_meter, "time", clock)
    return clock


def step(meter, done, total=100, **more):
    return meter.measure({"type": "progress", "done": done, "total": total, "unit": "rows", **more})


def test_a_rate_and_an_estimate_come_from_what_was_done(clock):
    meter = ProgressMeter()
    assert step(meter, 0).rate is None
    clock.now += 10
    progress = step(meter, 20)
    assert progress.rate == 2.0
    assert progress.eta_s == 40.0


def test_the_rate_is_that_of_the_last_half_minute(clock):
    meter = ProgressMeter()
    for done in range(0, 70, 10):  # one a second, for a minute
        step(meter, done)
        clock.now += 10
    clock.now -= 10
    for done in range(65, 85, 5):  # then one in two seconds
        clock.now += 10
        progress = step(meter, done)
    assert progress.rate == pytest.approx(0.5)


def test_a_standstill_has_no_rate_and_no_estimate(clock):
    meter = ProgressMeter()
    step(meter, 5)
    clock.now += 60
    progress = step(meter, 5)
    assert progress.rate is None
    assert progress.eta_s is None


def test_further_numbers_are_metrics_and_everything_else_is_not(clock):
    progress = step(ProgressMeter(), 1, tokens=5, ok=True, phase="warm", loss=None)
    assert progress.metrics == {"tokens": 5.0}


def run_document(tmp_path):
    return StageRun(
        job_id="job",
        stage=Stage.GENERATE,
        token="run",
        spec=job_spec(tmp_path),
        inputs={},
        out=tmp_path,
        work=tmp_path,
        previous=[],
        exchange=tmp_path,
    )


@pytest.mark.parametrize(
    ("returncode", "reason"),
    [(-9, StatusReason.OOM_HOST), (STORE_UNUSABLE, StatusReason.ARTIFACT_STORE), (3, StatusReason.INTERNAL)],
)
def test_a_stage_that_left_no_result_is_judged_by_how_it_ended(tmp_path, returncode, reason):
    result = _read_result(tmp_path / "absent", returncode, run_document(tmp_path))
    assert result.error.reason == reason
    assert result.error.where == "generate"
    assert result.error.hint


def test_a_result_is_read_whatever_the_exit_code(tmp_path):
    (tmp_path / "result.json").write_text(StageResult(summary={"rows": 3}, seconds=1).model_dump_json())
    assert _read_result(tmp_path / "result.json", 1, run_document(tmp_path)).summary == {"rows": 3}
