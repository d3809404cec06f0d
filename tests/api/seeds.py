"""Things that exist, so that requests which name them get further than 404."""

from typing import Any

import httpx
from redis import Redis

from shared.artifact_store import LocalArtifactStore
from shared.job_store import JobStore
from tests.support.gateway_process import GatewayProcess
from tests.support.published_drafts import figures, publish, report

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
        draft = publish(
            self.jobs, report(heldout={"trained": figures([0.8, 0.6, 0.4])}), data={"dataset": self.dataset()}
        )
        self.draft_job = draft.job_id
        return draft.id
