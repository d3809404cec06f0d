"""The fleet as Redis knows it: workers that live, GPUs that they see, who has a GPU, and verifiers that workers run."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from shared.schemas.spec import Document


class GpuInfo(Document):
    """One GPU that a worker sees."""

    id: str = Field(description="UUID, or the name of a faked GPU.")
    name: str = Field("", description="The product's name; `faked` for a faked GPU.")
    memory_bytes: int | None = Field(None, ge=0)


class GpuHolder(Document):
    """Who has a GPU, or had it last without giving it back."""

    token: str = Field(description="The run.")
    job_id: str
    stage: str = Field(description="What it is for: a stage, or `verifier`.")
    worker: str
    host: str
    since: datetime


class GpuStatus(StrEnum):
    """`quarantined`: the run that had it is gone without giving it back, and its processes may still be there."""

    FREE = "free"
    LEASED = "leased"
    QUARANTINED = "quarantined"


class GpuState(GpuInfo):
    """One GPU of the fleet."""

    status: GpuStatus
    holder: GpuHolder | None = None
    workers: list[str] = Field(default_factory=list, description="Ids of the live workers that see it.")


class WorkerRecord(Document):
    """One live worker; it says so again and again."""

    id: str
    host: str
    pid: int = Field(ge=1)
    version: str
    gpus: list[GpuInfo] = Field(default_factory=list)
    loggers: list[str] | None = Field(None, description="Loggers that its trainings can have; null: it does not say.")
    job_id: str | None = Field(None, description="The job that it runs now.")
    started_at: datetime
    seen_at: datetime = Field(description="By the worker's own clock.")


class VerifierStatus(StrEnum):
    """What a verifier is doing; `unreachable`: it does not answer."""

    READY = "ready"
    LOADING = "loading"
    UNREACHABLE = "unreachable"


class VerifierCapture(Document):
    """How a verifier keeps hidden states."""

    enabled: bool
    layer_ids: list[int] = Field(description="Captured layers, the final one last.")
    modes: list[Literal["inline", "prefill"]] = Field(description="What jobs can ask for in `capture.mode`.")
    exchange: str = Field(description="Folder that it leaves states in, as its own machine names it.")


class VerifierState(Document):
    """One verifier and what it serves."""

    id: str
    kind: Literal["external", "managed"] = Field(description="`managed`: a worker started it for one job.")
    url: str | None = Field(None, description="Base URL, for a managed one on its worker's host; null while it loads.")
    model: str | None = Field(None, description="The name that it serves the model under; null: not known.")
    status: VerifierStatus
    status_message: str = Field("", description="How far it is, or why it does not answer.")
    loaded: float | None = Field(None, ge=0, le=1, description="Part of the weights that is loaded, while they are.")
    load_seconds: float | None = Field(None, description="What a managed one took to answer; null while it loads.")
    num_layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    max_model_len: int | None = Field(None, description="Longest prompt and answer in tokens.")
    capture: VerifierCapture | None = Field(None, description="Null: it keeps no hidden states, or does not say.")
    draft: str | None = Field(None, description="The draft that it serves beside the model while this is measured.")
    job_id: str | None = Field(None, description="The job that a managed one was started for.")
    stage: str | None = Field(None, description="The stage that it was started for.")
    worker: str | None = Field(None, description="The worker that started it.")
    gpus: list[str] = Field(default_factory=list)
    checked_at: datetime = Field(description="When it was asked, or its worker spoke of it, last.")
