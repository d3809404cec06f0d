"""Answers as OpenAPI shows them, by the name of their schema: made by the code that makes the real ones."""

from datetime import UTC, datetime, timedelta
from typing import Any

from services.gateway.job_view import job_view
from shared.presets import resolve
from shared.schemas.job import AttemptRecord, JobRecord, JobStatus, Progress, Stage, StageStatus
from shared.schemas.plan import Amount, DraftParameters, Plan, StagePlan, StoreRoom, TokenEstimate

JOB, DATASET, DRAFT = "job_06f2k8m3q0000000000a", "ds_06f2k8m3q0000000000a", "draft_06f2k8m3q0000000000a"
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
CREATED = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def running_job() -> JobRecord:
    """A job in the middle of its training."""
    document = {"name": "chat drafts", "data": {"dataset": DATASET}, "metadata": {"team": "serving"}}
    record = JobRecord(id=JOB, spec=resolve(document), created_at=CREATED, updated_at=CREATED + timedelta(minutes=42))
    record.status, record.started_at = JobStatus.RUNNING, CREATED + timedelta(seconds=4)
    record.attempts = [AttemptRecord(number=1, worker="worker-1", started_at=record.started_at)]
    moment = record.started_at
    for name, seconds in ((Stage.PREPARE, 6.0), (Stage.GENERATE, 1800.0), (Stage.CAPTURE, 300.0), (Stage.VOCAB, 9.0)):
        stage = record.stage(name)
        stage.status, stage.attempt, stage.seconds, stage.started_at = StageStatus.SUCCEEDED, 1, seconds, moment
        stage.key, stage.manifest = SHA256, f"stages/{name}/{SHA256}/manifest.json"
        moment = stage.finished_at = moment + timedelta(seconds=seconds)
    train = record.stage(Stage.TRAIN)
    train.status, train.attempt, train.started_at = StageStatus.RUNNING, 1, moment
    train.progress = Progress(
        done=1200,
        total=6000,
        unit="steps",
        rate=3.1,
        eta_s=1548.4,
        metrics={"loss": 2.31, "tokens_per_s": 25400.0, "samples_per_s": 31.0},
        fraction=0.2,
        updated_at=record.updated_at,
    )
    return record


def plan() -> Plan:
    """The plan of that job."""
    sizes = {
        Stage.PREPARE: 9_500_000,
        Stage.GENERATE: 520_000_000,
        Stage.CAPTURE: 690_000_000_000,
        Stage.TRAIN: 60 << 30,
    }
    disk = {stage: Amount(least=size // 2, likely=size, most=2 * size) for stage, size in sizes.items()}
    nothing = Amount(least=0, likely=0, most=0)
    stages = [StagePlan(name=stage, disk_bytes=disk.get(stage, nothing)) for stage in Stage]
    parameters = DraftParameters(trained=1_500_000_000, head=229_376_000, embedding=1_174_405_120)
    return Plan(
        ok=True,
        document=running_job().spec,
        tokens=TokenEstimate(
            rows=12_000,
            tokens=Amount(least=600_000, likely=12_000_000, most=24_576_000),
            basis="dataset",
            assumptions=["rows cut at data.max_seq_len (2048 tokens)"],
        ),
        bytes_per_token=57_344,
        stages=stages,
        disk_bytes=sum((stage.disk_bytes for stage in stages), nothing),
        steps=13_190,
        draft_parameters=parameters,
        draft_parameters_total=parameters.total,
        verifier_starts=2,
        store=StoreRoom(free_bytes=4 << 40, floor_bytes=256 << 20),
    )


DURATIONS = {"queued_s": 4.0, "running_s": 2516.0, "total_s": 2520.0}  # else they would grow with the clock
FILE = {"path": "model.safetensors", "size": 2147483648, "sha256": SHA256, "stage": "publish"}
DATASET_FILE = {
    "path": "files/0.jsonl",
    "name": "data",
    "format": "jsonl",
    "compression": "none",
    "rows": 12000,
    "bytes": 9437184,
    "sha256": SHA256,
    "weight": None,
}
ANSWERS: dict[str, Any] = {
    "Plan": plan().model_dump(mode="json"),
    "JobView": job_view(running_job()).model_dump(mode="json") | {"durations": DURATIONS},
    "DatasetView": {
        "id": DATASET,
        "object": "dataset",
        "kind": "conversations",
        "name": "chats",
        "rows": 12000,
        "bytes": 9437184,
        "sha256": SHA256,
        "files": [DATASET_FILE],
        "created_at": "2026-01-31T11:58:00.000Z",
    },
    "EventView": {
        "id": "1769860800000-0",
        "type": "stage",
        "at": "2026-01-31T12:00:00.000Z",
        "data": {"stage": "train", "status": "running", "attempt": 1},
    },
    "FileView": {**FILE, "url": f"/v1/drafts/{DRAFT}/files/model.safetensors"},
}
