"""Finished outputs whose files were lost or cut later: found, set aside, and kept as a source for what is whole.

A manifest is never deleted: it moves to `manifest.damaged-TOKEN.json` beside it, and its stage is run again. All of
this happens under the stage's lease.
"""

from collections.abc import Iterator

from services.worker.stage_run import StoredOutput
from shared.artifact_store import LocalArtifactStore
from shared.ids import new_id
from shared.manifests import read_manifest, set_aside_manifests
from shared.schemas.manifest import Manifest
from shared.stage_keys import DAMAGED_PREFIX


def is_whole(store: LocalArtifactStore, manifest: Manifest) -> bool:
    """Tell whether all files of a manifest are there with their sizes; their content is not read."""
    return not store.damages(manifest.root, manifest.files)


def set_aside(store: LocalArtifactStore, key: str, damaged: Manifest | None) -> None:
    """Move the manifest `key` out of the way if it is still `damaged`; None: it is not there, or cannot be read."""
    token = new_id("unreadable") if damaged is None else damaged.token
    aside = f"{key.rpartition('/')[0]}/{DAMAGED_PREFIX}{token}.json"
    try:
        store.move(key, aside)
    except KeyError:
        return
    moved = read_manifest(store, aside)
    if moved is not None and moved.token != token:  # made again between the look and the move
        store.create(key, store.read(aside))
        store.delete(aside)


def damaged_outputs(store: LocalArtifactStore, folder: str) -> Iterator[StoredOutput]:
    """Outputs of the stage key in `folder` that were set aside and of which files are left."""
    for key, manifest in set_aside_manifests(store, folder):
        if store.exists(manifest.root):
            yield StoredOutput(manifest=store.path(key), folder=store.path(manifest.root))
