"""Redis away, back again, and emptied under a running gateway."""

from pathlib import Path

import httpx
import pytest

from services.cli.client import EyrieClient
from services.cli.errors import Unreachable
from tests.support.gateway_process import gateway_process
from tests.support.redis_server import redis_server
from tests.support.wait import wait_until


def test_redis_away_is_503_and_passes_by_itself(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "redis") as first,
        gateway_process(tmp_path, first.url, reconcile_interval_s="0.2") as gateway,
        httpx.Client(base_url=gateway.url, timeout=30) as http,
    ):
        dataset = http.post("/v1/datasets", content=b'{"prompt": "a"}\n').json()["id"]
        job = http.post("/v1/jobs", json={"data": {"dataset": dataset}}).json()
        first.stop()
        for response in (
            http.get(f"/v1/jobs/{job['id']}"),
            http.get("/v1/jobs"),
            http.post("/v1/jobs", json={"data": {"dataset": dataset}}),
            http.get("/readyz"),
            http.get("/metrics"),
        ):
            assert (response.status_code, response.headers["content-type"]) == (503, "application/problem+json")
            assert int(response.headers["retry-after"]) > 0
            assert str(first.port) not in response.text
        assert http.get("/healthz").status_code == 200
        assert http.get("/v1/datasets").status_code == 200
        with EyrieClient(gateway.url, retry_wait_s=0.01) as client, pytest.raises(Unreachable, match="Redis"):
            client.get_job(job["id"])
        with redis_server(tmp_path / "redis", first.port):
            wait_until(lambda: http.get("/readyz").status_code == 200, what="ready again")
            assert http.get(f"/v1/jobs/{job['id']}").json()["status"] == "queued"


def test_a_redis_that_comes_back_empty_is_rebuilt(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "redis") as first,
        gateway_process(tmp_path, first.url, reconcile_interval_s="0.2") as gateway,
        httpx.Client(base_url=gateway.url, timeout=30) as http,
    ):
        dataset = http.post("/v1/datasets", content=b'{"prompt": "a"}\n').json()["id"]
        ids = [http.post("/v1/jobs", json={"data": {"dataset": dataset}}).json()["id"] for _ in range(3)]
        http.post(f"/v1/jobs/{ids[0]}/cancel")
        first.stop()
        with redis_server(tmp_path / "empty", first.port):
            answers = [http.get(f"/v1/jobs/{job_id}").status_code for job_id in ids]
            assert set(answers) <= {200, 503}  # never 404
            wait_until(lambda: len(http.get("/v1/jobs").json().get("data", [])) == 3, what="three jobs again")
            listed = http.get("/v1/jobs").json()["data"]
            assert [(job["id"], job["status"]) for job in listed] == [
                (ids[2], "queued"),
                (ids[1], "queued"),
                (ids[0], "cancelled"),
            ]
            wait_until(lambda: http.get(f"/v1/jobs/{ids[1]}").json()["queue"]["position"], what="in line again")


def test_a_full_line_is_429(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "redis") as redis,
        gateway_process(tmp_path, redis.url, max_queued_jobs="2") as gateway,
        httpx.Client(base_url=gateway.url, timeout=30) as http,
    ):
        dataset = http.post("/v1/datasets", content=b'{"prompt": "a"}\n').json()["id"]
        answers = [http.post("/v1/jobs", json={"data": {"dataset": dataset}}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [201, 201, 429]
        assert answers[2].headers["retry-after"]
        assert len(list((gateway.store / "jobs").iterdir())) == 2
