"""Whole jobs with the artifact store in a bucket: gateway and workers share nothing on disk but the exchange folder."""

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.object_store import ObjectArtifactStore
from shared.presets import merge
from shared.schemas.job import Stage
from tests.support.gateway_process import gateway_process
from tests.support.s3_server import BUCKET, s3_server
from tests.support.stage_runs import DOCUMENT, prompts
from tests.support.verifier_stub import VerifierStub
from tests.support.wait import wait_until
from tests.support.worker_site import DATA, Site
from tools.embedded_redis import start_redis

pytestmark = pytest.mark.slow  # the simulated S3 costs most of a minute of one core

ROWS, WAIT_S, JOB_S = 6, 60.0, 150.0
URL = f"s3://{BUCKET}/store"


@dataclass
class Bucket:
    """A site whose store is a bucket."""

    site: Site
    http: httpx.Client
    folder: Path

    def start_worker(self, name: str) -> Any:
        """A worker with a working folder of its own, as on a machine of its own."""
        root = str(self.folder / name)
        return self.site.start_worker(DATA, EYRIE_STORE_URL=URL, EYRIE_STORE_ROOT=root, EYRIE_WORKER_METRICS_PORT="")

    def get(self, address: str, **params: Any) -> Any:
        answer = self.http.get(address, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def submit(self, **changes: Any) -> str:
        rows = "".join(f"{json.dumps(row)}\n" for row in prompts(ROWS)).encode()
        dataset = self.http.post("/v1/datasets", params={"name": "few"}, content=rows).json()["id"]
        verifier = {"model": str(self.site.verifier), "endpoint": self.site.stub.url}
        small = {"preset": "tiny", "capture": {"layer_ids": [1, 2, 3]}, "draft": {"num_key_value_heads": 2}}
        document = merge(DOCUMENT, {"verifier": verifier, "data": {"dataset": dataset}, **small, **changes})
        answer = self.http.post("/v1/jobs", json=document)
        assert answer.status_code in (200, 201, 202), answer.text
        return str(answer.json()["id"])

    def wait_for(self, job_id: str, status: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            job = self.get(f"/v1/jobs/{job_id}")
            assert job["status"] == status or job["status"] not in ("failed", "cancelled", "succeeded"), job["error"]
            return job if job["status"] == status else None

        return wait_until(look, JOB_S, what=f"the job is {status}")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    folder = tmp_path_factory.mktemp("bucket")
    (folder / "exchange").mkdir()
    (folder / "gateway").mkdir()
    with s3_server(), VerifierStub(folder / "exchange") as stub:
        site = Site(folder, stub, start_redis(folder / "redis"))
        settings = {"store_url": URL, "store_presign_s": "60", "exchange_root": str(site.exchange)}
        try:
            with (
                gateway_process(folder / "gateway", site.redis.url, **settings) as gateway,
                httpx.Client(base_url=gateway.url, timeout=60) as http,
            ):
                yield Bucket(site, http, folder)
        finally:
            site.close()


def test_a_job_that_one_machine_begins_another_one_ends_and_the_draft_is_in_the_bucket(bucket: Bucket) -> None:
    go_on = bucket.site.folder / "go-on"
    first = bucket.start_worker("one")
    job_id = bucket.submit(metadata={"train": f"hold {go_on}"})
    wait_until(lambda: list(bucket.site.folder.glob("go-on.reached.*")), JOB_S, what="the job trains")
    os.kill(first.pid, signal.SIGTERM)
    first.wait(WAIT_S)
    go_on.touch()
    bucket.start_worker("two")
    job = bucket.wait_for(job_id, "succeeded")
    assert len(job["attempts"]) == 2
    assert [stage["status"] for stage in job["stages"]] == ["succeeded"] * len(Stage)

    store = ObjectArtifactStore(URL, bucket.folder / "fresh")
    entries = bucket.get(f"/v1/drafts/{job['draft']}/files")["data"]
    assert entries
    for entry in entries:
        sent = bucket.http.get(entry["url"])
        assert sent.status_code == 307, "its address in the bucket"
        content = httpx.get(sent.headers["location"]).content
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["size"], entry["sha256"])
    lineage = bucket.get(f"/v1/drafts/{job['draft']}/lineage", verify="full")
    assert lineage["verified"], "every file of every stage, by its content"
    logs = bucket.http.get(f"/v1/jobs/{job_id}/logs").text
    assert all(f"==> {name} <==" in logs for name in ("prepare-1", "capture-1", "train-2", "publish-1"))
    assert len(bucket.get(f"/v1/jobs/{job_id}/rows")["data"]) == ROWS
    assert {"terminal.json", "logs"} <= set(store.list(f"jobs/{job_id}"))
    again = bucket.wait_for(bucket.submit(), "succeeded")
    assert {stage["status"] for stage in again["stages"]} == {"reused"}
    assert again["draft"] == job["draft"]
