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
    floor = settings.store_min_free_bytes
    return StoreRoom(
        free_bytes=store.free_bytes(),
        floor_bytes=min(int(FLOOR_SHARE * store.total_bytes()), LARGEST_FLOOR_BYTES) if floor is None else floor,
        quota_bytes=settings.store_quota_bytes,
        used_bytes=None if settings.store_quota_bytes is None else store.used_bytes(),
    )


def human_bytes(count: float) -> str:
    """Bytes as people read them: 512 B, 1.5 MiB."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units:
        if abs(count) < 1024 or unit == units[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
