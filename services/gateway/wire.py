"""What the API answers: models apart from the core records, and how they are made from these."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field

from shared.errors import StatusReason
from shared.schemas.job import (
    DONE_STAGES,
    AttemptRecord,
    ErrorDetail,
    JobRecord,
    JobStatus,
    Progress,
    Stage,
    StageRecord,
    StageStatus,
    UserAction,
    now,
)
from shared.schemas.registry import DatasetRecord, DraftRecord
from shared.schemas.spec import JobSpec

Item = TypeVar("Item")

# How much of a job each stage stands for, in percent: a rough share of time that adds up to 100.
STAGE_SHARE = {
    Stage.PREPARE: 2,
    Stage.GENERATE: 30,
    Stage.CAPTURE: 10,
    Stage.VOCAB: 1,
    Stage.TRAIN: 45,
    Stage.EVALUATE: 11,
    Stage.PUBLISH: 1,
}


class Page(BaseModel, Generic[Item]):
    """One page of a list. Pass the id of its last entry as `after` to get the next one."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool


class StatusReasonView(BaseModel):
    """Why a job is in its status."""

    code: StatusReason
    message: str


class StageView(BaseModel):
    """One stage of a job."""

    name: Stage
    status: StageStatus
    attempt: int
    progress: Progress | None
    seconds: float | None
    started_at: datetime | None
    finished_at: datetime | None
    summary: dict[str, Any]


class JobProgress(BaseModel):
    """How far the whole job is."""

    percent: float = Field(description="Over all stages; 100 only when the job has succeeded.")
    stage: Stage | None = Field(description="The stage that runs, or comes next.")


class QueueView(BaseModel):
    """Where a waiting job stands."""

    position: int | None = Field(description="Place in line, from 1; null when not in line.")


class Durations(BaseModel):
    """Seconds, never negative."""

    queued_s: float
    running_s: float | None
    total_s: float


class AttemptView(AttemptRecord):
    """One attempt at a job as the API shows it."""


class JobView(BaseModel):
    """A job as the API shows it."""

    id: str
    object: Literal["job"] = "job"
    name: str | None
    preset: str
    status: JobStatus
    status_reason: StatusReasonView | None
    attempt: int = Field(description="Number of the attempt that runs, or comes next.")
    attempts: list[AttemptView] = Field(description="The latest attempts, oldest first, and what ended them.")
    retry_of: str | None = Field(description="The failed or cancelled job that this one does again.")
    retried_as: str | None = Field(description="The job that does this one again.")
    progress: JobProgress
    queue: QueueView
    stages: list[StageView]
    durations: Durations
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    draft: str | None = Field(description="Id of the published draft.")
    error: ErrorDetail | None
    metadata: dict[str, str]
    spec: JobSpec = Field(description="The resolved document.")
    links: dict[str, str]


class EventView(BaseModel):
    """Something that happened to a job."""

    id: str
    type: str
    at: datetime
    data: dict[str, Any]


class FileView(BaseModel):
    """A file that can be downloaded."""

    path: str
    size: int = Field(description="Bytes.")
    sha256: str
    stage: Stage | None = None
    url: str


class DatasetView(DatasetRecord):
    """A dataset as the API shows it."""


class DraftView(BaseModel):
    """A published draft as the API shows it."""

    id: str
    object: Literal["draft"] = "draft"
    job_id: str
    verifier: str
    algorithm: str
    bytes: int
    evaluation: dict[str, Any]
    gate: Literal["passed", "failed", "none"]
    created_at: datetime
    links: dict[str, str]


class PresetView(BaseModel):
    """A preset and what it fills in."""

    name: str
    default: bool
    document: dict[str, Any]


def job_view(record: JobRecord, position: int | None = None) -> JobView:
    """Show a job; `position` is its place in line while it is queued."""
    reason = record.status_reason
    return JobView(
        id=record.id,
        name=record.spec.name,
        preset=record.spec.preset,
        status=record.status,
        status_reason=StatusReasonView(code=reason, message=record.status_message) if reason else None,
        attempt=record.attempt,
        attempts=[AttemptView.model_validate(attempt.model_dump()) for attempt in record.attempts],
        retry_of=record.retry_of,
        retried_as=record.retried_as,
        progress=_progress(record),
        queue=QueueView(position=position if record.status == JobStatus.QUEUED else None),
        stages=[_stage_view(stage) for stage in record.stages],
        durations=_durations(record),
        created_at=record.created_at,
        updated_at=record.updated_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        draft=record.draft,
        error=record.error,
        metadata=record.spec.metadata,
        spec=record.spec,
        links=_job_links(record),
    )


def draft_view(record: DraftRecord) -> DraftView:
    """Show a draft."""
    base = f"/v1/drafts/{record.id}"
    links = {"self": base, "files": f"{base}/files", "lineage": f"{base}/lineage", "job": f"/v1/jobs/{record.job_id}"}
    return DraftView(links=links, **record.model_dump(exclude={"root", "manifest", "object"}))


def event_view(event_id: str, fields: Mapping[str, Any]) -> EventView:
    """Show an event of a job's stream."""
    return EventView(id=event_id, type=fields["type"], at=fields["at"], data=fields["data"])


def _stage_view(stage: StageRecord) -> StageView:
    return StageView.model_validate(stage.model_dump(exclude={"key", "manifest"}))


def _progress(record: JobRecord) -> JobProgress:
    if record.status == JobStatus.SUCCEEDED:
        return JobProgress(percent=100.0, stage=None)
    percent = sum(STAGE_SHARE[stage.name] * _stage_fraction(stage) for stage in record.stages)
    current = next((stage.name for stage in record.stages if stage.status not in DONE_STAGES), None)
    return JobProgress(percent=min(round(percent, 1), 99.9), stage=current)


def _stage_fraction(stage: StageRecord) -> float:
    """What was reached counts, also while the stage waits for another attempt."""
    if stage.status in DONE_STAGES:
        return 1.0
    progress = stage.progress
    if progress is None or progress.total <= 0:
        return 0.0
    return max(progress.fraction, min(progress.done / progress.total, 1.0))


def _durations(record: JobRecord) -> Durations:
    end = record.finished_at or max(now(), record.updated_at)
    started = record.started_at
    running = None if started is None else _seconds(started, end)
    return Durations(
        queued_s=_seconds(record.created_at, started or end),
        running_s=running,
        total_s=_seconds(record.created_at, end),
    )


def _seconds(start: datetime, end: datetime) -> float:
    """Clocks of two machines may differ: never below zero."""
    return max(round((end - start).total_seconds(), 3), 0.0)


def _job_links(record: JobRecord) -> dict[str, str]:
    base = f"/v1/jobs/{record.id}"
    links = {"self": base, "events": f"{base}/events"}
    links |= {action.value: f"{base}/{action}" for action in UserAction}
    links |= {"logs": f"{base}/logs", "artifacts": f"{base}/artifacts", "rows": f"{base}/rows"}
    return links | ({"draft": f"/v1/drafts/{record.draft}"} if record.draft else {})
