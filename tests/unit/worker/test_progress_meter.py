"""Progress over several runs of one stage: what people see never falls."""

import pytest

from services.worker.progress_meter import ProgressMeter
from shared.schemas.job import Progress


def measure(meter: ProgressMeter, done: float, total: float = 100, unit: str = "steps") -> Progress:
    return meter.measure({"type": "progress", "done": done, "total": total, "unit": unit})


def test_a_run_that_goes_on_from_an_earlier_point_shows_the_furthest_step_and_where_it_began() -> None:
    reached = measure(ProgressMeter(), 60)
    meter = ProgressMeter(reached)
    shown = [measure(meter, done) for done in (40, 50, 60, 61)]
    assert [progress.done for progress in shown] == [60, 60, 60, 61]
    assert {progress.resumed_from for progress in shown} == {40}
    assert reached.resumed_from is None


def test_a_total_that_grows_takes_no_part_of_the_stage_back() -> None:
    meter = ProgressMeter()
    fractions = [measure(meter, done, total).fraction for done, total in ((0, 0), (50, 100), (60, 300), (240, 300))]
    assert fractions == [0, 0.5, 0.5, 0.8]


def test_another_unit_counts_anew_and_the_part_of_the_stage_stays() -> None:
    meter = ProgressMeter(measure(ProgressMeter(), 50))
    progress = measure(meter, 1, 10, "rows")
    assert (progress.done, progress.fraction) == (1, 0.5)


def test_nothing_is_shown_beyond_the_total() -> None:
    assert measure(ProgressMeter(measure(ProgressMeter(), 90)), 5, 50).done == 50


def test_tokens_that_a_stage_counts_become_a_rate() -> None:
    meter = ProgressMeter()
    meter.measure({"done": 0, "total": 9, "unit": "conversations", "tokens": 100})
    progress = meter.measure({"done": 1, "total": 9, "unit": "conversations", "tokens": 300})
    assert progress.rate is not None
    assert progress.metrics["tokens_per_s"] == pytest.approx(200 * progress.rate)
