"""Books of a stage: there, balanced, and continued from the stage before."""

from typing import Any

import pytest

from services.worker.books import check_books
from shared.errors import InternalError
from shared.schemas.job import Stage, now
from shared.schemas.manifest import Manifest

pytestmark = pytest.mark.data


def books(taken: int, kept: int, **rejected: int) -> dict[str, Any]:
    return {"accounting": {"unit": "rows", "taken": taken, "kept": kept, "rejected": rejected}}


def after(stage: Stage, summary: dict[str, Any]) -> dict[str, Manifest]:
    fields: dict[str, Any] = {"key": "k", "token": "t", "job_id": "j", "root": "r", "inputs": {}, "parameters": {}}
    return {stage: Manifest(stage=stage, files=[], summary=summary, seconds=0, created_at=now(), **fields)}


def test_books_that_balance_and_continue_pass() -> None:
    check_books(Stage.CAPTURE, books(10, 8, bad_states=2), after(Stage.GENERATE, books(12, 10, refused=2)))
    check_books(Stage.PREPARE, books(5, 5), {})
    check_books(Stage.GENERATE, {**books(20, 20), "conversations": 7}, after(Stage.PREPARE, books(9, 7, duplicate=2)))


@pytest.mark.parametrize(
    ("stage", "summary", "upstream", "message"),
    [
        (Stage.PREPARE, {}, {}, "no books"),
        (Stage.PREPARE, books(10, 8, duplicate=1), {}, "do not balance"),
        (Stage.PREPARE, books(-1, -1), {}, "do not balance"),
        (Stage.CAPTURE, books(9, 9), after(Stage.GENERATE, books(10, 10)), "generate kept 10, capture took 9"),
        (Stage.VOCAB, books(9, 9), after(Stage.CAPTURE, books(10, 10)), "capture kept 10, vocab took 9"),
        (Stage.TRAIN, books(9, 9), after(Stage.CAPTURE, books(10, 10)), "capture kept 10, train took 9"),
        (
            Stage.GENERATE,
            {**books(9, 9), "conversations": 8},
            after(Stage.PREPARE, books(9, 9)),
            "prepare kept 9, generate took 8",
        ),
    ],
)
def test_a_stage_that_loses_something_unnamed_is_a_defect(
    stage: Stage, summary: dict[str, Any], upstream: dict[str, Manifest], message: str
) -> None:
    with pytest.raises(InternalError, match=message):
        check_books(stage, summary, upstream)
