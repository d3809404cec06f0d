"""What no live worker has is refused when the job is submitted, not hours later: loggers, and large enough GPUs."""

import pytest

from services.gateway.capacity import check_capacity, memory_notes
from shared.presets import TINY_VERIFIER, resolve
from shared.schemas.fleet import GpuInfo, WorkerRecord
from shared.schemas.job import now
from shared.submission import SubmissionError
from shared.verifier_config import read_verifier_config

DOCUMENT = {"preset": "tiny", "data": {"dataset": "ds_x"}, "train": {"gpus": 0}, "evaluate": {"gpus": 0}}


def worker(loggers: list[str] | None) -> WorkerRecord:
    return WorkerRecord(id="w", host="h", pid=1, version="0", loggers=loggers, started_at=now(), seen_at=now())


def test_a_logger_that_no_worker_has_is_refused() -> None:
    spec = resolve({**DOCUMENT, "integrations": ["tensorboard", "wandb"]})
    with pytest.raises(SubmissionError) as caught:
        check_capacity(spec, [worker(["tensorboard"]), worker([])])
    assert [error.pointer for error in caught.value.errors] == ["/integrations/1"]
    assert "pip install wandb" in caught.value.errors[0].message


@pytest.mark.parametrize("workers", [[], [None], [["tensorboard"], None], [["wandb"], ["tensorboard"]]])
def test_what_a_worker_has_or_may_have_is_taken(workers: list[list[str] | None]) -> None:
    spec = resolve({**DOCUMENT, "integrations": ["tensorboard", "wandb"]})
    check_capacity(spec, [worker(loggers) for loggers in workers])


def test_the_default_needs_nothing() -> None:
    check_capacity(resolve(DOCUMENT), [worker([])])


def fleet(*memory: int | None) -> list[WorkerRecord]:
    """A live worker with one GPU for each size."""
    gpus = [GpuInfo(id=f"GPU-{number}", memory_bytes=size) for number, size in enumerate(memory)]
    return [worker(None).model_copy(update={"gpus": gpus})]


def test_a_draft_that_fits_on_no_gpu_is_refused_with_what_there_is() -> None:
    spec, config = resolve({**DOCUMENT, "train": {"gpus": 1}}), read_verifier_config(TINY_VERIFIER)
    with pytest.raises(SubmissionError) as caught:
        check_capacity(spec, fleet(1024**2, 3 * 1024**2), config)
    (error,) = caught.value.errors
    assert error.pointer == "/draft"
    assert "the largest GPU of the live workers has 3.0 MiB" in error.message


@pytest.mark.parametrize("workers", [[], fleet(None), fleet(None, 1024), fleet(8 * 1024**2)])
def test_a_draft_that_may_fit_is_taken(workers: list[WorkerRecord]) -> None:
    spec, config = resolve({**DOCUMENT, "train": {"gpus": 1}}), read_verifier_config(TINY_VERIFIER)
    check_capacity(spec, workers, config)
    check_capacity(spec, workers, None)


def test_a_plan_says_where_memory_will_probably_run_out() -> None:
    spec, config = resolve({**DOCUMENT, "train": {"gpus": 1}}), read_verifier_config(TINY_VERIFIER)
    (note,) = memory_notes(spec, fleet(64 * 1024**2), config)
    assert "the largest one here has 64.0 MiB: if it runs out, lower train.pack_length" in note
    assert memory_notes(spec, fleet(8 * 1024**3), config) == []
    assert memory_notes(resolve(DOCUMENT), fleet(64 * 1024**2), config) == [], "it trains on no GPU"
