"""A scripted verifier for stages that run in the test's own process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.worker.data import verifier_failures
from tests.support.verifier_stub import VerifierStub


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VerifierStub]:
    """It shares `runs/exchange` with a `StageRunner` in `runs`; failed requests are sent again at once."""
    monkeypatch.setattr(verifier_failures, "FIRST_BACKOFF_S", 0.001)
    with VerifierStub(tmp_path / "runs" / "exchange") as running:
        yield running
