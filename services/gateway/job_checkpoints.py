"""Checkpoints of a job's training: the steps that it can go on from, and the epochs whose weights are kept.

A resume point is told by a `checkpoint` event, and its files are looked for; epochs by the validations. The finished
stage's `train_config.json` says which epoch was best.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from services.gateway.files import StoredFile, job_files
from services.gateway.job_metrics import VALIDATION, Point
from shared.artifact_store import LocalArtifactStore
from shared.event_log import EventLog
from shared.schemas.job import JobRecord, Stage

Kind = Literal["resume", "best", "last", "published"]
RECORD, BEST_FOLDER, LAST_FOLDER = "train/train_config.json", "train/draft/", "train/last/"
RESUME_FOLDER = "work/run/resume"  # below an attempt at the train stage


class CheckpointView(BaseModel):
    """A step whose weights are kept, or were."""

    id: str = Field(examples=["step-1200"])
    object: Literal["checkpoint"] = "checkpoint"
    step: int
    epoch: int | None
    kind: list[Kind] = Field(
        description="resume: a training can go on from it; best, last: epoch by validation; published: the draft."
    )
    metrics: dict[str, float] = Field(description="Of the validation at this step; empty where there was none.")
    at: datetime | None
    available: bool = Field(description="Whether its weights are still there.")


class _Result(BaseModel):
    """An epoch as the validations tell it, or `train_config.json`."""

    epoch: int
    step: int
    metrics: dict[str, float]


def checkpoints(
    events: EventLog, store: LocalArtifactStore, record: JobRecord, points: Sequence[Point]
) -> list[CheckpointView]:
    """All checkpoints of a job, by step.

    Args:
        points: the job's metrics.
    """
    found: dict[int, CheckpointView] = {}
    resumable = _resumable_steps(store, record)
    for _, fields in events.read_all(record.id):
        if fields["type"] == "checkpoint":
            data = fields["data"]
            view = _entry(found, int(data["step"]), data.get("epoch"), fields["at"])
            view.kind, view.available = ["resume"], view.step in resumable
    validations = {p.step: (_result(p), p.at) for p in points if p.is_validation and p.stage == Stage.TRAIN}
    for step, (result, _) in validations.items():
        if step in found:
            found[step].epoch, found[step].metrics = result.epoch, result.metrics
    for kind, result, available in _epochs(store, record, [result for result, _ in validations.values()]):
        _, at = validations.get(result.step, (None, None))
        view = _entry(found, result.step, result.epoch, at)
        view.epoch, view.metrics, view.available = result.epoch, result.metrics, view.available or available
        view.kind = [*view.kind, kind]
    return [found[step] for step in sorted(found)]


def _entry(found: dict[int, CheckpointView], step: int, epoch: int | None, at: str | None) -> CheckpointView:
    view = CheckpointView(
        id=f"step-{step}", step=step, epoch=epoch, kind=[], metrics={}, at=_moment(at), available=False
    )
    return found.setdefault(step, view)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _result(point: Point) -> _Result:
    metrics = {name.removeprefix(VALIDATION): value for name, value in point.values.items() if name != "epoch"}
    return _Result(epoch=int(point.values.get("epoch", 0)), step=point.step, metrics=metrics)


def _epochs(
    store: LocalArtifactStore, record: JobRecord, validated: Sequence[_Result]
) -> Iterator[tuple[Kind, _Result, bool]]:
    """The best and the last epoch, so far or in the end, and whether the job has published the weights of each."""
    files = job_files(store, record)
    config = _train_record(store, files)
    if config is None:
        if validated:
            yield "best", max(validated, key=_rank), False
            yield "last", max(validated, key=lambda result: result.step), False
        return
    best, last = _Result.model_validate(config["best"]), _Result.model_validate(config["last"])
    folder = BEST_FOLDER if best.epoch == last.epoch else LAST_FOLDER
    yield "best", best, _is_there(store, files, BEST_FOLDER)
    yield "last", last, _is_there(store, files, folder)
    if record.draft is not None:
        yield "published", best, store.exists(f"drafts/{record.draft}.json")


def _rank(result: _Result) -> tuple[float, float]:
    """As the trainer ranks epochs: the longest estimated acceptance, then the lowest loss."""
    return result.metrics.get("estimated_acceptance_length", 0.0), -result.metrics.get("loss", 0.0)


def _train_record(store: LocalArtifactStore, files: Mapping[str, StoredFile]) -> dict[str, Any] | None:
    if RECORD not in files:
        return None
    try:
        found: dict[str, Any] = json.loads(store.read(files[RECORD].key))
    except KeyError:  # somebody has removed it from the store
        return None
    return found if "best" in found and "last" in found else None


def _is_there(store: LocalArtifactStore, files: Mapping[str, StoredFile], folder: str) -> bool:
    weights = [file for path, file in files.items() if path.startswith(folder)]
    return bool(weights) and all(store.exists(file.key) for file in weights)


def _resumable_steps(store: LocalArtifactStore, record: JobRecord) -> set[int]:
    """Steps whose resume points lie in the work folders of attempts at the job's training."""
    key = record.stage(Stage.TRAIN).key
    attempts = f"stages/{Stage.TRAIN}/{key}/attempts"
    names = (name for token in store.list(attempts) for name in store.list(f"{attempts}/{token}/{RESUME_FOLDER}"))
    steps = (name.removeprefix("step_") for name in names if name.startswith("step_"))
    return {int(step) for step in steps if step.isascii() and step.isdigit()} if key else set()
