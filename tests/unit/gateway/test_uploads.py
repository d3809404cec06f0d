"""Uploads onto a store that cannot be written."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.gateway.uploads import receive_dataset
from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError
from shared.settings import Settings


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"prompt": "x"}\n'

    store = LocalArtifactStore(tmp_path)
    monkeypatch.setattr(store, "staging_file", lambda: Path("/dev/null/upload"))  # can neither be made nor removed
    with pytest.raises(ArtifactStoreError, match="the upload cannot be written"):
        asyncio.run(receive_dataset(body(), store, Settings(), None))
