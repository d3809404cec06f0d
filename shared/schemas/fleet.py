"""The fleet as Redis knows it: workers that live, GPUs that they see, and who has a GPU."""

from datetime import datetime
from enum import StrEnum

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
    job_id: str | None = Field(None, description="The job that it runs now.")
    started_at: datetime
    seen_at: datetime = Field(description="By the worker's own clock.")
