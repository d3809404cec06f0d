"""The trainer's own line to the stage: one JSON object a line, from the first rank only.

`events.jsonl` is what the stage follows; `metrics.jsonl` is what is published, and survives a resume: the lines of
earlier attempts up to the resume point come first.
"""

import json
import logging
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from services.worker.training.run_config import EVENTS_NAME, METRICS_NAME

LIBRARY_METRICS = "speculators.metrics"


class EventWriter:
    """Appends events and metrics; silent on other ranks."""

    def __init__(self, run_folder: Path, *, active: bool) -> None:
        self._folder, self._active = run_folder, active

    def event(self, kind: str, **fields: Any) -> None:
        """Tell the stage something."""
        self._append(EVENTS_NAME, {"type": kind, **_finite(fields)})

    def metrics(self, split: str, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Record named numbers of one training step or one validation; also told to the stage."""
        record = {"split": split, "step": step, "epoch": epoch, "values": _finite(values)}
        self._append(METRICS_NAME, record)
        self.event("metrics", **record)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if self._active:
            with (self._folder / name).open("a") as file:
                file.write(json.dumps(record) + "\n")


class LastRecord(logging.Handler):
    """Keeps the latest metrics that speculators logged (logger `speculators.metrics`, a mapping as message)."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.latest: dict[str, Any] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep training metrics; what else the library logs there (its configuration) is not of interest."""
        if isinstance(record.msg, dict) and "train" in record.msg:
            self.latest = record.msg

    def take(self) -> dict[str, Any]:
        """Return what was logged since the last call, or an empty mapping."""
        latest, self.latest = self.latest, {}
        return latest


def keep_earlier_metrics(source: Path, run_folder: Path, step: int) -> None:
    """Start this run's metrics with those of `source` (an earlier attempt's, or its own) up to and including `step`."""
    target = run_folder / METRICS_NAME
    temporary = target.with_suffix(".tmp")
    with temporary.open("w") as output:
        for record in read_lines(source):
            if record.get("step", step + 1) <= step:
                output.write(json.dumps(record) + "\n")
    shutil.move(temporary, target)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Complete JSON lines of a file; a last line cut by a kill is left out."""
    if not path.is_file():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: a number that is not finite becomes null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
    }
