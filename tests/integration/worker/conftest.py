"""A site for each test: Redis, a scripted verifier, and workers when the test starts them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.verifier_stub import VerifierStub
from tests.support.worker_site import Site
from tools.embedded_redis import start_redis


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site without workers yet. At its end no hidden states lie in the exchange folder, whatever happened."""
    redis = start_redis(tmp_path / "redis")
    (tmp_path / "exchange").mkdir()
    with VerifierStub(tmp_path / "exchange") as stub:
        made = Site(tmp_path, stub, redis)
        try:
            yield made
        finally:
            made.close()
    assert list(made.exchange.iterdir()) == []
