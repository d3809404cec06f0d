"""How much the artifact store can still take, by its quota and by the free space of its volume."""

from shared.artifact_store import LocalArtifactStore
from shared.schemas.plan import StoreRoom
from shared.settings import Settings

FLOOR_SHARE = 0.01
LARGEST_FLOOR_BYTES = 256 * 1024**2


def store_room(store: LocalArtifactStore, settings: Settings) -> StoreRoom:
    """Look now. With a quota every file of the store is looked at, which takes seconds for a million of them.

    Raises:
        ArtifactStoreError: the store cannot be read.
    """
    store.make_root()  # nothing has been written yet where a service is new, or the store is a bucket
    floor = settings.store_min_free_bytes
    return StoreRoom(
        free_bytes=store.free_bytes(),
        floor_bytes=min(int(FLOOR_SHARE * store.total_bytes()), LARGEST_FLOOR_BYTES) if floor is None else floor,
        quota_bytes=settings.store_quota_bytes,
        used_bytes=None if settings.store_quota_bytes is None else store.used_bytes(),
    )
