"""Follows the trainer's event file and says the same to the supervisor."""

import json
from typing import Any

from services.worker.stage_context import Reporter
from services.worker.training.run_config import EVENTS_NAME, RunConfig


class EventFollower:
    """Reads new lines of `events.jsonl`; `failure` holds the trainer's own account of its end, if it gave one."""

    def __init__(self, config: RunConfig, report: Reporter) -> None:
        self._path = config.run / EVENTS_NAME
        self._report = report
        self._offset = 0
        self._total = 0
        self.failure: dict[str, Any] | None = None

    def relay(self) -> None:
        """Pass on what is new; a line that is still being written waits for the next call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._pass_on(json.loads(line))

    def _pass_on(self, event: dict[str, Any]) -> None:
        kind = event.pop("type")
        if kind == "started":
            self._total = event["total_steps"]
            self._report.event("training_started", **event)
            self._report.progress(event["step"], self._total, "steps")
        elif kind == "metrics":
            self._metrics(event)
        elif kind == "checkpoint":
            self._report.event("checkpoint", **event)
        elif kind == "warning":
            self._report.warn(event["message"])
        elif kind == "failed":
            self.failure = self.failure or event

    def _metrics(self, event: dict[str, Any]) -> None:
        values = {name: value for name, value in event["values"].items() if value is not None}
        if event["split"] == "val":
            named = {f"val_{name}": value for name, value in values.items()}
            self._report.metric(event["step"], {**named, "epoch": event["epoch"]})
            return
        self._report.metric(event["step"], {**values, "epoch": event["epoch"]})
        shown = ("loss", "samples_per_s", "tokens_per_s")
        self._report.progress(
            event["step"],
            self._total,
            "steps",
            **{name: values.get(name) for name in shown},
            epoch=event["epoch"],
        )
