"""The fleet as the API shows it: workers with the stage that they run, GPUs with who has them, and verifiers."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.fleet import Fleet
from shared.job_store import JobStore
from shared.schemas.fleet import GpuInfo, GpuState, GpuStatus, VerifierState, WorkerRecord
from shared.schemas.job import JobRecord, Stage, StageStatus

GPU = "GPU-4f8c0d6e-1f5e-4b8a-9c55-2f6d1f0a7b31"
JOB = "job_06f2k8m3q0000000000a"
WORKER = "6c1f0e5d9a7b4c52a8e94d3b7f601a2c"
GPU_EXAMPLE: dict[str, Any] = {"id": GPU, "name": "NVIDIA H200", "memory_bytes": 150754820096}
VERIFIER_EXAMPLE: dict[str, Any] = {
    "id": "verifier_06f2k8m3q0000000000a",
    "object": "verifier",
    "kind": "managed",
    "url": None,
    "model": "Kimi-K2.5",
    "status": "loading",
    "status_message": "has loaded 12 of 64 files of weights",
    "loaded": 0.1875,
    "num_layers": 61,
    "hidden_size": 7168,
    "vocab_size": 163840,
    "max_model_len": 4096,
    "capture": {
        "enabled": True,
        "layer_ids": [2, 30, 58, 61],
        "modes": ["inline", "prefill"],
        "exchange": "/shared/exchange",
    },
    "draft": None,
    "job_id": JOB,
    "stage": None,
    "worker": WORKER,
    "gpus": [GPU],
    "checked_at": "2026-03-01T12:00:00Z",
}


class WorkerView(WorkerRecord):
    """A live worker as the API shows it."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": WORKER,
                "object": "worker",
                "host": "node-3",
                "pid": 4711,
                "version": "0.1.0",
                "gpus": [GPU_EXAMPLE],
                "job_id": JOB,
                "stage": "train",
                "started_at": "2026-03-01T11:00:00Z",
                "seen_at": "2026-03-01T12:00:00Z",
            }
        }
    )

    object: Literal["worker"] = "worker"
    stage: Stage | None = Field(description="The stage that it runs now.")


class GpuHolderView(BaseModel):
    """Who has a GPU, or had it last without giving it back."""

    job_id: str
    stage: str = Field(description="What it is for: a stage, or `verifier`.")
    worker: str
    host: str
    since: datetime


class GpuView(GpuInfo):
    """A GPU as the API shows it."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                **GPU_EXAMPLE,
                "object": "gpu",
                "status": "leased",
                "holder": {
                    "job_id": JOB,
                    "stage": "train",
                    "worker": WORKER,
                    "host": "node-3",
                    "since": "2026-03-01T12:00:00Z",
                },
                "workers": [WORKER],
            }
        }
    )

    object: Literal["gpu"] = "gpu"
    status: GpuStatus
    holder: GpuHolderView | None = Field(description="Null while it is free.")
    workers: list[str] = Field(description="Ids of the live workers that see it.")


class VerifierView(VerifierState):
    """A verifier as the API shows it."""

    model_config = ConfigDict(json_schema_extra={"example": VERIFIER_EXAMPLE})

    object: Literal["verifier"] = "verifier"


def worker_views(jobs: JobStore) -> list[WorkerView]:
    """The live workers, by host."""
    workers = Fleet(jobs.redis).workers()
    records = {record.id: record for record in jobs.get_many(worker.job_id for worker in workers if worker.job_id)}
    return [
        WorkerView(**worker.model_dump(), stage=_running_stage(records.get(worker.job_id or ""))) for worker in workers
    ]


def gpu_views(jobs: JobStore) -> list[GpuView]:
    """Every GPU that a live worker sees or that somebody holds, by id."""
    return [_gpu_view(gpu) for gpu in Fleet(jobs.redis).gpus()]


def verifier_views(jobs: JobStore, external: VerifierState | None) -> list[VerifierView]:
    """The fleet's own verifier, if it has one, then those that workers run now, oldest first."""
    found = [external] if external is not None else []
    return [VerifierView(**state.model_dump()) for state in [*found, *Fleet(jobs.redis).verifiers()]]


def _running_stage(record: JobRecord | None) -> Stage | None:
    stages = record.stages if record is not None else []
    return next((stage.name for stage in stages if stage.status == StageStatus.RUNNING), None)


def _gpu_view(gpu: GpuState) -> GpuView:
    holder = GpuHolderView(**gpu.holder.model_dump(exclude={"token"})) if gpu.holder else None
    return GpuView(**gpu.model_dump(exclude={"holder"}), holder=holder)
