"""The job record: what Redis and the artifact store keep of a job, and what the gateway shows of it."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from shared.errors import EyrieError, StatusReason
from shared.schemas.spec import Document, JobSpec


class Stage(StrEnum):
    """The stages of a job, in the order in which they run."""

    PREPARE = "prepare"
    GENERATE = "generate"
    CAPTURE = "capture"
    VOCAB = "vocab"
    TRAIN = "train"
    EVALUATE = "evaluate"
    PUBLISH = "publish"


class JobStatus(StrEnum):
    """What a job is doing. `shared.state_machine` holds the transitions."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class UserAction(StrEnum):
    """What a person can ask of a job. `shared.state_machine` says when."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"


class StageStatus(StrEnum):
    """What a stage of a job is doing; `reused` is a success whose files another run had already made."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    REUSED = "reused"
    FAILED = "failed"
    CANCELLED = "cancelled"


DONE_STAGES = frozenset({StageStatus.SUCCEEDED, StageStatus.REUSED})


class ErrorDetail(Document):
    """An error as people read it."""

    reason: StatusReason
    message: str
    where: str = ""
    hint: str = ""

    @classmethod
    def from_error(cls, error: EyrieError) -> "ErrorDetail":
        return cls(reason=error.reason, message=error.message, where=error.where, hint=error.hint)


class Progress(Document):
    """How far the running stage is."""

    done: float = Field(ge=0, description="Units finished.")
    total: float = Field(ge=0, description="Units in all.")
    unit: str = Field(description="What is counted: rows, steps, prompts.")
    rate: float | None = Field(None, description="Units a second over the last half minute.")
    eta_s: float | None = Field(None, description="Seconds to the end of the stage at this rate.")
    metrics: dict[str, float] = Field(default_factory=dict, description="Latest figures: loss, tokens_per_s, ...")
    activity: str | None = Field(None, description="What is done while nothing is counted, such as starting vLLM.")
    fraction: float = Field(0.0, ge=0, le=1, description="Part of the stage; never falls, however often it is run.")
    resumed_from: float | None = Field(None, description="Units that this run took over from an earlier one.")
    updated_at: datetime


class StageRecord(Document):
    """One stage of one job."""

    name: Stage
    status: StageStatus = StageStatus.PENDING
    attempt: int = Field(0, ge=0, description="How many runs were started.")
    key: str | None = Field(None, description="Content key: equal keys have equal inputs and parameters.")
    started_at: datetime | None = None
    finished_at: datetime | None = None
    seconds: float | None = Field(None, ge=0)
    progress: Progress | None = None
    manifest: str | None = Field(None, description="Store key of the manifest once the stage is done.")
    summary: dict[str, Any] = Field(default_factory=dict, description="Counts and figures of the finished stage.")


class AttemptRecord(Document):
    """One attempt at a job: from the worker that took it to what ended it."""

    number: int = Field(ge=1)
    worker: str
    started_at: datetime
    ended_at: datetime | None = None
    reason: StatusReason | Literal["handed_over"] | None = Field(
        None, description="What ended it early; null while it runs and when it finished the job."
    )
    stage: Stage | None = Field(None, description="The stage that it ended in.")
    message: str = ""


class JobRecord(Document):
    """One job: the truth about it. Redis keeps it with a version; every change is a compare-and-set."""

    id: str
    version: int = Field(0, ge=0)
    spec: JobSpec
    status: JobStatus = JobStatus.QUEUED
    status_reason: StatusReason | None = None
    status_message: str = ""
    error: ErrorDetail | None = None
    attempt: int = Field(1, ge=1, description="Number of the attempt that runs, or comes next.")
    attempts: list[AttemptRecord] = Field(default_factory=list, description="The latest attempts, oldest first.")
    retries: dict[StatusReason, int] = Field(default_factory=dict, description="Automatic retries so far, by reason.")
    retry_after_s: float | None = Field(None, ge=0, description="Wait before the next attempt, while it lasts.")
    requested: UserAction | None = Field(None, description="What a person asked for last.")
    retry_of: str | None = Field(None, description="The failed or cancelled job that this one does again.")
    retried_as: str | None = Field(None, exclude=True, description="The job that does this one again.")
    token: str | None = Field(None, description="Fences the running attempt.")
    worker: str | None = None
    stages: list[StageRecord] = Field(default_factory=lambda: [StageRecord(name=name) for name in Stage])
    draft: str | None = Field(None, description="Id of the published draft.")
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None

    def stage(self, name: Stage) -> StageRecord:
        """Return the record of one stage."""
        return next(stage for stage in self.stages if stage.name == name)


def now() -> datetime:
    """The present, in UTC, to the millisecond."""
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
