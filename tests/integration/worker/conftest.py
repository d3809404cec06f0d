"""A site for each test: Redis, a scripted verifier, and workers when the test starts them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.verifier_stub import VerifierStub
from tests.support.worker_site import Site
from tools.embedded_redis import start_redis


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One site for all tests of a module."""
    with open_site(tmp_path_factory.mktemp("site")) as made:
        yield made


@contextmanager
def open_site(folder: Path) -> Iterator[Site]:
    """A site without workers yet. At its end no hidden states lie in the exchange folder, whatever happened."""
    redis = start_redis(folder / "redis")
    (folder / "exchange").mkdir()
    with VerifierStub(folder / "exchange") as stub:
        made = Site(folder, stub, redis)
        try:
            yield made
        finally:
            made.close()
    assert list(made.exchange.iterdir()) == []
