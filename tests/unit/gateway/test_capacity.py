"""A logger that no live worker has is refused when the job is submitted, not hours later."""

import pytest

from services.gateway.capacity import check_capacity
from shared.presets import resolve
from shared.schemas.fleet import WorkerRecord
from shared.schemas.job import now
from shared.submission import SubmissionError

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
