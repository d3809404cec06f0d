"""A real gateway and Redis, with one of everything in them."""

from collections.abc import Iterator

import httpx
import pytest

from tests.api.seeds import Seeds
from tests.support.gateway_process import gateway_process
from tests.support.redis_server import redis_server


@pytest.fixture(scope="session")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeds]:
    folder = tmp_path_factory.mktemp("api")
    with (
        redis_server(folder / "redis") as redis,
        gateway_process(folder, redis.url, max_upload_bytes="1000000") as gateway,
        httpx.Client(base_url=gateway.url, timeout=60) as http,
    ):
        yield Seeds(http, gateway, redis.url)
