"""The real trainer with speculators' own loggers: what they leave is published, and one that fails ends nothing."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from services.worker.stage_context import StageContext
from services.worker.stages import train

pytestmark = pytest.mark.slow

Context = Callable[..., StageContext]
WORD = "a-password-of-the-worker"


def losses(context: StageContext) -> list[float]:
    lines = [json.loads(line) for line in (context.out / "metrics.jsonl").read_text().splitlines()]
    return [line["values"]["loss"] for line in lines if line["split"] == "train"]


def tensorboard_losses(logs: Path) -> list[float]:
    (folder,) = {path.parent for path in logs.rglob("events.out.tfevents.*") if path.parent.name == "job_x"}
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [event.value for event in events.Scalars("train/loss")]


def trackio_losses(logs: Path) -> list[float]:
    with sqlite3.connect(logs / "trackio" / "speculators.db") as database:
        rows = database.execute("SELECT metrics FROM metrics ORDER BY step, id").fetchall()
    found = [json.loads(row[0]) for row in rows]
    return [entry["train/loss"] for entry in found if "train/loss" in entry]


def test_tensorboard_and_trackio_hold_the_losses(context: Context) -> None:
    made = context(integrations=["tensorboard", "trackio"], epochs=2)
    train.run(made)
    logged = losses(made)
    assert len(logged) > 5
    assert tensorboard_losses(made.out / "logs") == pytest.approx(logged, rel=1e-4)
    assert trackio_losses(made.out / "logs") == pytest.approx(logged, rel=1e-4)
    names = [path.relative_to(made.out).as_posix() for path in made.out.rglob("*") if path.is_file()]
    assert not [name for name in names if name.endswith(".lock") or "/." in name]


def test_a_logger_that_fails_is_left_out_with_a_warning(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackio, the default, is told to log to what is no URL, and says that with the URL in its error."""
    monkeypatch.setenv("TRACKIO_SERVER_URL", f"ftp://someone:{WORD}@nowhere.example")
    made = context(epochs=1)
    summary = train.run(made)
    assert summary["steps"] == len(losses(made)) > 0
    told = made.report.stream.getvalue()
    assert "the logger Trackio failed" in told
    assert "must be a full URL" in told
    assert WORD not in told
