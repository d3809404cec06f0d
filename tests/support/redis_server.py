"""A real Redis for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.embedded_redis import RedisHandle, start_redis


@contextmanager
def redis_server(folder: Path, port: int | None = None, binary: str | None = None) -> Iterator[RedisHandle]:
    """A Redis server on a free loopback port that ends with the block."""
    handle = start_redis(folder, port, binary)
    try:
        yield handle
    finally:
        handle.stop()
