"""Things that exist, so that requests which name them get further than 404."""

import hashlib
from typing import Any

import httpx
from redis import Redis

from shared.artifact_store import LocalArtifactStore
from shared.ids import new_id
from shared.job_store import JobStore
from shared.schemas.job import JobRecord, JobStatus, Stage, StageStatus, now
from shared.schemas.manifest import FileEntry, Manifest
from shared.schemas.registry import DraftRecord
from tests.support.gateway_process import GatewayProcess

FILES = {"config.json": b"{}", "README.md": b"# a draft\n"}
DELETES = "DELETE"


class Seeds:
    """Makes datasets, jobs and drafts; those that are only read are made once."""

    def __init__(self, http: httpx.Client, gateway: GatewayProcess, redis_url: str) -> None:
        self.http, self.gateway = http, gateway
        self.store = LocalArtifactStore(gateway.store)
        self.jobs = JobStore(Redis.from_url(redis_url, decode_responses=True), self.store)
        self.kept = {"dataset_id": self.dataset(), "draft_id": self.draft()}
        self.kept["job_id"] = self.draft_job

    def of(self, parameter: str, method: str) -> str | None:
        """What a path parameter can name; something new where the request would delete it."""
        makers = {"dataset_id": self.dataset, "job_id": self.ended_job, "draft_id": self.draft}
        if method == DELETES and parameter in makers:
            return makers[parameter]()
        return self.kept.get(parameter)

    def dataset(self) -> str:
        response = self.http.post("/v1/datasets?name=seed", content=b'{"prompt": "a"}\n{"prompt": "b"}\n')
        return str(response.raise_for_status().json()["id"])

    def job(self, **fields: Any) -> str:
        document = {"data": {"dataset": self.dataset()}, **fields}
        return str(self.http.post("/v1/jobs", json=document).raise_for_status().json()["id"])

    def ended_job(self) -> str:
        job_id = self.job()
        self.http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
        return job_id

    def draft(self) -> str:
        """A job that has succeeded, and its draft."""
        job_id = self.draft_job = self.job(metadata={"seed": "draft"})
        root = f"stages/publish/{job_id}/out"
        for name, content in FILES.items():
            self.store.write(f"{root}/{name}", content)
        files = [
            FileEntry(path=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in FILES.items()
        ]
        key = f"stages/publish/{job_id}/manifest.json"
        manifest = Manifest(
            stage=Stage.PUBLISH,
            key="k",
            token="t",
            job_id=job_id,
            root=root,
            inputs={},
            parameters={},
            files=files,
            seconds=1,
            created_at=now(),
        )
        self.store.write(key, manifest.model_dump_json().encode())
        draft = DraftRecord(
            id=new_id("draft"),
            job_id=job_id,
            verifier="v",
            algorithm="eagle3",
            root=root,
            manifest=key,
            bytes=sum(map(len, FILES.values())),
            created_at=now(),
        )
        self.store.write(f"drafts/{draft.id}.json", draft.model_dump_json().encode())

        def succeed(record: JobRecord) -> None:
            record.status, record.draft = JobStatus.SUCCEEDED, draft.id
            record.stage(Stage.PUBLISH).status = StageStatus.SUCCEEDED
            record.stage(Stage.PUBLISH).manifest = key

        self.jobs.update(job_id, lambda record: setattr(record, "status", JobStatus.RUNNING))
        self.jobs.update(job_id, succeed)
        return draft.id
