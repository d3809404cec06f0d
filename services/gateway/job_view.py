"""A job as the API shows it, and how it is made from the record."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from services.gateway.deps import Backend
from shared.errors import StatusReason, error_page
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
from shared.schemas.spec import JobSpec

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
    """How far the job is: in percent as a whole, the rest of the stage that runs; null where it is not known."""

    percent: float = Field(description="Over all stages; 100 only when the job has succeeded.")
    stage: Stage | None = Field(description="The stage that runs, or comes next.")
    step: float | None = Field(None, description="Units that the stage has done.")
    total: float | None = Field(None, description="Units that the stage has in all.")
    unit: str | None = Field(None, description="What is counted: rows, conversations, steps, prompts.")
    samples_per_s: float | None = Field(None, description="Rows, conversations or prompts a second.")
    tokens_per_s: float | None = Field(None, description="Tokens a second: written, or trained on.")
    eta_s: float | None = Field(None, description="Seconds to the end of the stage at its present rate.")
    updated_at: datetime | None = Field(None, description="When the stage said so.")


class QueueView(BaseModel):
    """Where a waiting job stands."""

    position: int | None = Field(description="Place in line, from 1; null when not in line.")


class Durations(BaseModel):
    """Seconds, never negative."""

    queued_s: float
    running_s: float | None
    total_s: float


class ErrorView(ErrorDetail):
    """What ended a job: what was wrong, where, and what to do."""

    docs: str = Field(description="Page of the documentation about this reason, in the repository.")


class ArtifactsView(BaseModel):
    """What a finished stage has left."""

    stage: Stage
    key: str | None = Field(description="Content key of the stage: stages of equal keys have the same files.")
    url: str = Field(description="The list of its files.")


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
    artifacts: list[ArtifactsView] = Field(description="Of the stages that have finished.")
    draft: str | None = Field(description="Id of the published draft.")
    error: ErrorView | None
    metadata: dict[str, str]
    spec: JobSpec = Field(description="The resolved document.")
    links: dict[str, str]


def show_job(backend: Backend, record: JobRecord) -> JobView:
    """Show a job with its place in line."""
    queued = record.status == JobStatus.QUEUED
    return job_view(record, backend.queue.position(record.id, record.attempt) if queued else None)


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
        artifacts=[_artifacts_view(record.id, stage) for stage in record.stages if stage.manifest],
        draft=record.draft,
        error=_error_view(record.error),
        metadata=record.spec.metadata,
        spec=record.spec,
        links=_job_links(record),
    )


def _stage_view(stage: StageRecord) -> StageView:
    return StageView.model_validate(stage.model_dump(exclude={"key", "manifest"}))


def _artifacts_view(job_id: str, stage: StageRecord) -> ArtifactsView:
    return ArtifactsView(stage=stage.name, key=stage.key, url=f"/v1/jobs/{job_id}/artifacts?stage={stage.name}")


def _error_view(error: ErrorDetail | None) -> ErrorView | None:
    return None if error is None else ErrorView(docs=error_page(error.reason), **error.model_dump())


def _progress(record: JobRecord) -> JobProgress:
    if record.status == JobStatus.SUCCEEDED:
        return JobProgress(percent=100.0, stage=None, updated_at=record.finished_at)
    percent = min(round(sum(STAGE_SHARE[stage.name] * _stage_fraction(stage) for stage in record.stages), 1), 99.9)
    current = next((stage for stage in record.stages if stage.status not in DONE_STAGES), None)
    if current is None or current.progress is None:
        return JobProgress(percent=percent, stage=current.name if current else None)
    progress = current.progress
    counted = progress.total > 0
    speeds = progress if current.status == StageStatus.RUNNING else None
    return JobProgress(
        percent=percent,
        stage=current.name,
        step=progress.done if counted else None,
        total=progress.total if counted else None,
        unit=progress.unit if counted else None,
        samples_per_s=_samples_per_s(speeds) if speeds else None,
        tokens_per_s=speeds.metrics.get("tokens_per_s") if speeds else None,
        eta_s=speeds.eta_s if speeds else None,
        updated_at=progress.updated_at,
    )


def _samples_per_s(progress: Progress) -> float | None:
    """What the trainer measures, or the rate of a stage whose units are samples themselves."""
    return progress.metrics.get("samples_per_s", progress.rate if progress.unit != "steps" else None)


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
    names = ("events", *UserAction, "logs", "metrics", "checkpoints", "artifacts", "rows")
    links = {"self": base} | {str(name): f"{base}/{name}" for name in names}
    if record.draft:
        draft = f"/v1/drafts/{record.draft}"
        links |= {"draft": draft, "lineage": f"{draft}/lineage"}
    return links
