"""A real Redis for each test module, and a real gateway before it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared.artifact_store import LocalArtifactStore
from shared.job_store import JobStore
from shared.queue import JobQueue
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.redis_server import redis_server
from tools.embedded_redis import RedisHandle


@pytest.fixture(scope="module")
def redis_handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisHandle]:
    with redis_server(tmp_path_factory.mktemp("redis")) as handle:
        yield handle


@pytest.fixture(scope="module")
def gateway(redis_handle: RedisHandle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    with gateway_process(folder, redis_handle.url, max_row_bytes="4096", max_upload_bytes="1000000") as process:
        yield process


@pytest.fixture
def http(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30) as client:
        yield client


@pytest.fixture
def store(gateway: GatewayProcess) -> LocalArtifactStore:
    return LocalArtifactStore(gateway.store)


@pytest.fixture
def queue(redis_handle: RedisHandle) -> JobQueue:
    return JobQueue(redis_handle.url)


@pytest.fixture
def jobs(redis_handle: RedisHandle, store: LocalArtifactStore) -> Iterator[JobStore]:
    with open_redis(redis_handle.url) as redis:
        yield JobStore(redis, store)


def open_redis(url: str):
    from redis import Redis

    return Redis.from_url(url, decode_responses=True)


@pytest.fixture
def dataset(http: httpx.Client) -> str:
    response = http.post("/v1/datasets?name=two", content=b'{"prompt": "a"}\n{"prompt": "b"}\n')
    assert response.status_code == 201, response.text
    return response.json()["id"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    return path
