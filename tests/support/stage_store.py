"""Finished stages, jobs and drafts in a store, written as workers write them, for tests that run none."""

import hashlib
import os
from pathlib import Path

from redis import Redis

from shared.artifact_store import LocalArtifactStore, file_sha256
from shared.ids import new_id
from shared.job_store import JobStore
from shared.live_jobs import PREFIX
from shared.presets import resolve
from shared.schemas.job import JobRecord, JobStatus, Stage, StageStatus, now
from shared.schemas.manifest import FileEntry, Lineage, Manifest, StageInput
from shared.schemas.registry import DraftRecord
from shared.stage_keys import UPSTREAM

DAY_S = 86_400


class StageStore:
    """A store with its job records. Equal variants of a stage and of all before it share a key."""

    def __init__(self, redis: Redis, root: Path) -> None:
        self.store = LocalArtifactStore(root)
        self.jobs = JobStore(redis, self.store)

    def job(self, variants: str, done: int = len(Stage), status: JobStatus = JobStatus.SUCCEEDED) -> JobRecord:
        """A job that has done its first stages; `variants` has a letter for each."""
        record = self.jobs.create(resolve({"data": {"dataset": "ds_x"}}))
        manifests: dict[Stage, Manifest] = {}
        for number, stage in enumerate(list(Stage)[:done], start=1):
            manifests[stage] = self.stage(stage, variants[:number], manifests, record.id)

        def change(record: JobRecord) -> None:
            record.status = JobStatus.RUNNING
            for stage, manifest in manifests.items():
                entry = record.stage(stage)
                entry.status, entry.key = StageStatus.SUCCEEDED, manifest.key
                entry.manifest = f"stages/{stage}/{manifest.key}/manifest.json"

        self.jobs.update(record.id, change)
        if done == len(Stage):
            self.draft(manifests[Stage.PUBLISH])
        return self.jobs.update(record.id, lambda record: setattr(record, "status", status))

    def stage(self, stage: Stage, variant: str, before: dict[Stage, Manifest], job_id: str) -> Manifest:
        """A finished stage, or the one that is there already."""
        key = hashlib.sha256(f"{stage} {variant}".encode()).hexdigest()[:32]
        prefix = f"stages/{stage}/{key}"
        if self.store.exists(f"{prefix}/manifest.json"):
            return Manifest.model_validate_json(self.store.read(f"{prefix}/manifest.json"))
        token = new_id("run")
        root = f"{prefix}/attempts/{token}/out"
        self.store.write(f"{root}/result.txt", f"{stage} {variant}".encode())
        path = self.store.path(f"{root}/result.txt")
        manifest = Manifest(
            stage=stage,
            key=key,
            token=token,
            job_id=job_id,
            root=root,
            inputs={str(name): before[name].digest() for name in UPSTREAM[stage]},
            lineage=Lineage(stages={name: _input(before[name]) for name in UPSTREAM[stage]}),
            parameters={},
            files=[FileEntry(path="result.txt", size=path.stat().st_size, sha256=file_sha256(path))],
            seconds=1,
            created_at=now(),
        )
        assert self.store.create(f"{prefix}/manifest.json", manifest.model_dump_json().encode())
        return manifest

    def draft(self, manifest: Manifest) -> str:
        """The draft of a publish stage."""
        draft_id = f"draft_{manifest.key[:20]}"
        record = DraftRecord(
            id=draft_id,
            job_id=manifest.job_id,
            verifier="v",
            algorithm="eagle3",
            root=manifest.root,
            manifest=f"stages/publish/{manifest.key}/manifest.json",
            bytes=1,
            created_at=now(),
        )
        self.store.create(f"drafts/{draft_id}.json", record.model_dump_json().encode())
        return draft_id

    def delete_job(self, job_id: str) -> None:
        """Remove a job, and what only it has."""
        redis = self.jobs.redis
        redis.delete(f"{PREFIX}job:{job_id}", f"{PREFIX}events:{job_id}")
        redis.zrem(f"{PREFIX}jobs", job_id)
        redis.srem(f"{PREFIX}jobs:active", job_id)
        self.store.delete(f"jobs/{job_id}")

    def age(self, days: float, key: str = "stages") -> None:
        """Let everything below a key have been written so many days ago."""
        root = self.store.path(key)
        moment = self.store.now() - days * DAY_S
        for folder, _, names in os.walk(root):
            for path in [folder, *(os.path.join(folder, name) for name in names)]:
                os.utime(path, (moment, moment))
        os.utime(root, (moment, moment))

    def manifests(self) -> dict[str, Manifest]:
        """Finished stages by their digest."""
        paths = self.store.root.glob("stages/*/*/manifest.json")
        found = [Manifest.model_validate_json(path.read_bytes()) for path in paths]
        return {manifest.digest(): manifest for manifest in found}

    def verify(self, manifest_key: str) -> None:
        """Fail unless a stage and all that it was made from are there, byte for byte."""
        known = self.manifests()
        waiting = [Manifest.model_validate_json(self.store.read(manifest_key))]
        while waiting:
            manifest = waiting.pop()
            for file in manifest.files:
                assert file_sha256(self.store.path(f"{manifest.root}/{file.path}")) == file.sha256
            waiting += [known[digest] for digest in manifest.inputs.values()]


def _input(manifest: Manifest) -> StageInput:
    return StageInput(manifest=f"stages/{manifest.stage}/{manifest.key}/manifest.json", digest=manifest.digest())
