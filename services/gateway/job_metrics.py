"""The figures that a job's training reports: one point an optimizer step, and one a validation.

They are the job's `metric` events. A training that goes on from an earlier step repeats what came after it: the points
that it replaces are left out. Points that another job's training made, because the stage was reused or gone on with,
come from the stage's `metrics.jsonl`.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from services.gateway.files import job_files
from services.gateway.paging import page_of, unknown_after
from shared.artifact_store import LocalArtifactStore
from shared.event_archive import position
from shared.event_log import EventLog
from shared.schemas.job import JobRecord, Stage

VALIDATION = "val_"  # what names of a validation's figures begin with
METRICS_FILE = "train/metrics.jsonl"
STARTED = "training_started"
PLACE = ("stage", "step", "attempt")


class MetricView(BaseModel):
    """Figures of one optimizer step, or of a validation after it (their names begin with `val_`)."""

    id: str
    at: datetime | None = Field(description="When it was reported; null for points of another job's training.")
    stage: Stage
    attempt: int | None = Field(description="Which run of the stage; null where another job made it.")
    step: int
    values: dict[str, float] = Field(examples=[{"loss": 4.2, "tokens_per_s": 5120.0, "epoch": 0}])


@dataclass(frozen=True)
class Point:
    """A point before it is shown."""

    id: str
    at: str | None
    stage: Stage
    attempt: int | None
    step: int
    values: dict[str, float]

    @property
    def is_validation(self) -> bool:
        """Whether it is of a validation, not of a training step."""
        return any(name.startswith(VALIDATION) for name in self.values)


def metric_points(events: EventLog, store: LocalArtifactStore, record: JobRecord) -> list[Point]:
    """All points of a job that hold, by stage and step."""
    points = _reported(events, record.id)
    first = min((point.step for point in points if point.stage == Stage.TRAIN), default=None)
    earlier = [point for point in _from_file(store, record) if first is None or point.step < first]
    order = list(Stage)
    return sorted(earlier + points, key=lambda point: (order.index(point.stage), point.step))


def metric_page(
    points: Sequence[Point], after: str | None, limit: int, names: Collection[str], most: int | None
) -> tuple[list[MetricView], bool]:
    """At most `limit` points that follow `after`, and whether more do.

    Args:
        names: only these figures, and only points that have one of them; empty: all.
        most: thin all points out evenly until so many are left; the first and the last stay.

    Raises:
        Problem: 422, there is no point `after`.
    """
    behind = {point.id for point in _after(points, after)}
    chosen = list(points)
    if names:
        named = (replace(point, values={k: v for k, v in point.values.items() if k in names}) for point in points)
        chosen = [point for point in named if point.values]
    if most is not None:  # of the whole curve: its pages together are what one page would be
        chosen = thin(chosen, most)
    left = [point for point in chosen if point.id in behind]
    views = [MetricView(**vars(point)) for point in left[:limit]]
    return views, len(left) > limit


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` of the points, evenly spread, with the first and the last; validations apart from steps."""
    groups = [[p for p in points if not p.is_validation], [p for p in points if p.is_validation]]
    groups = sorted((group for group in groups if group), key=len)
    if most < 2 * len(groups):
        groups = [list(points)]
    kept: set[str] = set()
    for number, group in enumerate(groups):
        share = (most - len(kept)) // (len(groups) - number)
        kept |= {group[index].id for index in _spread(len(group), share)}
    return [point for point in points if point.id in kept]


def _spread(count: int, most: int) -> Collection[int]:
    if count <= most:
        return range(count)
    return {round(place * (count - 1) / (most - 1)) for place in range(most)}


def _after(points: Sequence[Point], after: str | None) -> list[Point]:
    """The points behind an id: that of an event may have been replaced since, and is a place all the same."""
    ids = [point.id for point in points]
    if after is None or after in ids:
        rest, _ = page_of(ids, after, len(ids))
        return list(points[len(points) - len(rest) :])
    try:
        place = position(after)
    except ValueError:
        raise unknown_after(after) from None
    return [point for point in points if point.at is not None and position(point.id) > place]


def _reported(events: EventLog, job_id: str) -> list[Point]:
    found: list[Point] = []
    for event_id, fields in events.read_all(job_id):
        data = fields["data"]
        if fields["type"] == STARTED:
            found = [point for point in found if point.stage != data["stage"] or point.step <= data["step"]]
        elif fields["type"] == "metric":
            point = _point(event_id, fields["at"], data)
            if found and found[-1].stage == point.stage and found[-1].attempt != point.attempt:
                found = [earlier for earlier in found if not _replaces(point, earlier)]
            found.append(point)
    return found


def _point(event_id: str, at: str, data: dict[str, Any]) -> Point:
    values = {name: float(value) for name, value in data.items() if name not in PLACE and value is not None}
    return Point(event_id, at, Stage(data["stage"]), data.get("attempt"), int(data["step"]), values)


def _replaces(point: Point, earlier: Point) -> bool:
    if earlier.stage != point.stage or earlier.attempt == point.attempt:
        return False
    same_kind = earlier.is_validation == point.is_validation
    return earlier.step > point.step or (earlier.step == point.step and same_kind)


def _from_file(store: LocalArtifactStore, record: JobRecord) -> list[Point]:
    """Points of the finished train stage, whichever job ran it."""
    if record.stage(Stage.TRAIN).manifest is None:
        return []
    file = job_files(store, record).get(METRICS_FILE)
    if file is None:
        return []
    try:
        lines = store.read(file.key).decode().splitlines()
    except KeyError:
        return []
    return [_file_point(number, json.loads(line)) for number, line in enumerate(lines)]


def _file_point(number: int, line: dict[str, Any]) -> Point:
    prefix = VALIDATION if line["split"] == "val" else ""
    values = {f"{prefix}{name}": float(value) for name, value in line["values"].items() if value is not None}
    return Point(f"train-{number}", None, Stage.TRAIN, None, int(line["step"]), values | {"epoch": line["epoch"]})
