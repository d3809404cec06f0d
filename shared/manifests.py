"""Reads manifests from the artifact store: those that hold, and those that were set aside as damaged."""

from collections.abc import Iterator

from shared.artifact_store import LocalArtifactStore
from shared.schemas.manifest import Manifest
from shared.stage_keys import DAMAGED_PREFIX
from shared.stored_documents import read_document


def read_manifest(store: LocalArtifactStore, key: str) -> Manifest | None:
    """The manifest at `key`; None where there is none, or it cannot be read."""
    return read_document(store, key, Manifest)


def set_aside_manifests(store: LocalArtifactStore, folder: str) -> Iterator[tuple[str, Manifest]]:
    """Yield key and content of the manifests in a stage's folder that were set aside because files were lost."""
    for name in store.list(folder):
        if name.startswith(DAMAGED_PREFIX) and (manifest := read_manifest(store, f"{folder}/{name}")) is not None:
            yield f"{folder}/{name}", manifest
