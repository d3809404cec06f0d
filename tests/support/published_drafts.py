"""Drafts in a gateway's store, each with its job and the manifests of its stages, written as workers write them."""

from typing import Any

from shared.artifact_store import LocalArtifactStore, file_sha256
from shared.ids import new_id
from shared.job_store import JobStore
from shared.presets import merge, resolve
from shared.schemas.job import JobRecord, JobStatus, Stage, StageStatus, now
from shared.schemas.manifest import DatasetInput, FileEntry, Lineage, Manifest, StageInput
from shared.schemas.registry import DraftRecord
from shared.stage_keys import UPSTREAM, stage_parameters

DATASET = "ds_00000000000000000000"


def figures(per_position: list[float], mode: str = "vllm") -> dict[str, Any]:
    """What the evaluate stage reports of one draft on one suite."""
    return {"acceptance_length": 1 + sum(per_position), "per_position": per_position, "mode": mode}


def report(gate: str = "none", k: int = 3, **suites: dict[str, Any]) -> dict[str, Any]:
    """An evaluation report."""
    return {
        "mode": "vllm",
        "num_speculative_tokens": k,
        "temperature": 0.0,
        "suites": suites,
        "gate": {"result": gate, "failures": ["acceptance length 1.1 is below 2"] if gate == "failed" else []},
    }


def publish(
    jobs: JobStore, evaluation: dict[str, Any], dataset_sha: str = "a" * 64, verifier: str = "v", **document: Any
) -> DraftRecord:
    """A job that has succeeded with a draft.

    Args:
        dataset_sha: equal ones stand for equal datasets, and so for equal held-out prompts.
        document: parts of the job's document.
    """
    store, record = jobs.artifacts, jobs.create(resolve(merge({"data": {"dataset": DATASET}}, document)))
    made: dict[Stage, Manifest] = {}
    for stage in Stage:
        made[stage] = _stage(store, record, stage, made, dataset_sha)
    manifest = made[Stage.PUBLISH]
    draft = DraftRecord(
        id=new_id("draft"),
        job_id=record.id,
        verifier=verifier,
        algorithm="eagle3",
        root=manifest.root,
        manifest=_key(manifest),
        digest=manifest.digest(),
        bytes=7,
        evaluation=evaluation,
        gate=evaluation["gate"]["result"],
        created_at=now(),
    )
    store.write(f"drafts/{draft.id}.json", draft.model_dump_json().encode())

    def succeed(job: JobRecord) -> None:
        job.status, job.draft = JobStatus.SUCCEEDED, draft.id
        for stage, manifest in made.items():
            entry = job.stage(stage)
            entry.status, entry.key, entry.manifest = StageStatus.SUCCEEDED, manifest.key, _key(manifest)

    jobs.update(record.id, lambda job: setattr(job, "status", JobStatus.RUNNING))
    jobs.update(record.id, succeed)
    return draft


def _stage(
    store: LocalArtifactStore, record: JobRecord, stage: Stage, made: dict[Stage, Manifest], dataset_sha: str
) -> Manifest:
    root = f"stages/{stage}/{record.id}/attempts/t/out"
    store.write(f"{root}/model.safetensors", b"weights")
    path = store.path(f"{root}/model.safetensors")
    stages = {name: StageInput(manifest=_key(made[name]), digest=made[name].digest()) for name in UPSTREAM[stage]}
    inputs = {str(name): one.digest for name, one in stages.items()}
    datasets = {}
    if stage == Stage.PREPARE:
        datasets["dataset"] = DatasetInput(id=record.spec.data.dataset, name="d", sha256=dataset_sha)
        inputs["dataset"] = dataset_sha
    manifest = Manifest(
        stage=stage,
        key=record.id if stage != Stage.PREPARE else "prepared",
        token="t",
        job_id=record.id,
        root=root,
        inputs=inputs,
        parameters=stage_parameters(stage, record.spec),
        lineage=Lineage(stages=stages, datasets=datasets),
        files=[FileEntry(path="model.safetensors", size=7, sha256=file_sha256(path))],
        seconds=1,
        created_at=now(),
    )
    store.write(f"stages/{stage}/{record.id}/manifest.json", manifest.model_dump_json().encode())
    return manifest


def _key(manifest: Manifest) -> str:
    return f"{manifest.root.removesuffix('/attempts/t/out')}/manifest.json"
