"""Opens the artifact store that the settings name."""

import importlib

from shared.artifact_store import LocalArtifactStore
from shared.settings import Settings


def open_store(settings: Settings) -> LocalArtifactStore:
    """The bucket of `EYRIE_STORE_URL`, with `EYRIE_STORE_ROOT` as working folder; else that folder itself.

    Raises:
        UserError: the URL names no bucket.
    """
    if not settings.store_url:
        return LocalArtifactStore(settings.store_root)
    adapter = importlib.import_module("shared.object_store")  # boto3 takes half a second that most need not wait
    store: LocalArtifactStore = adapter.ObjectArtifactStore(
        settings.store_url, settings.store_root, settings.store_presign_s
    )
    return store
