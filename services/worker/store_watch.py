"""Keeps a stage from filling the artifact store: before it starts, and while it runs.

Before: a stage that cannot fit even at its least is refused. While it runs it is looked at every few seconds; once the
quota or the floor of free space is passed, `check` raises, and the supervisor ends the stage. What is whole of it is
kept for the next attempt.
"""

import logging
import time

from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError
from shared.schemas.job import Stage
from shared.schemas.plan import Amount
from shared.settings import Settings
from shared.sizes import human_bytes
from shared.store_room import store_room

log = logging.getLogger(__name__)
INTERVAL_S = 2.0
REST = 10  # a look that takes long is followed by ten times its duration of rest


def require_room(store: LocalArtifactStore, settings: Settings, stage: Stage, needed: Amount, kept_bytes: int) -> None:
    """Refuse a stage that surely does not fit.

    Args:
        needed: what the stage will write.
        kept_bytes: of earlier attempts at it, which are in the store already.

    Raises:
        ArtifactStoreError
    """
    room = store_room(store, settings)
    if needed.least > room.left + kept_bytes:
        raise ArtifactStoreError(
            f"{stage} needs at least {human_bytes(needed.least)} (probably {human_bytes(needed.likely)}), and the "
            f"artifact store has {human_bytes(max(0, room.left + kept_bytes))} left",
            where=str(stage),
            hint=_remedy(settings),
        )


class StoreWatch:
    """Looks at the store while a stage runs: `look` is done beside it, `check` by whoever supervises it.

    A look that fails is not held against the stage: its own writes tell soon enough.
    """

    def __init__(self, store: LocalArtifactStore, settings: Settings, stage: Stage) -> None:
        self.store, self.settings, self.stage = store, settings, stage
        self._over: ArtifactStoreError | None = None

    def check(self) -> None:
        """To be called often; costs nothing.

        Raises:
            ArtifactStoreError: the store is over its quota, or its volume nearly full.
        """
        if self._over is not None:
            raise self._over

    def look(self) -> float:
        """See what the store holds; returns the seconds after which to look again."""
        started = time.monotonic()
        try:
            self._over = self._look()
        except (ArtifactStoreError, OSError) as error:
            log.warning("the store was not looked at: %s", error)
        return max(INTERVAL_S, REST * (time.monotonic() - started))

    def _look(self) -> ArtifactStoreError | None:
        room = store_room(self.store, self.settings)
        if room.left >= 0:
            return None
        full = room.free_bytes < room.floor_bytes
        what = f"its volume has only {human_bytes(room.free_bytes)} free"
        if not full:
            quota, used = human_bytes(room.quota_bytes or 0), human_bytes(room.used_bytes or 0)
            what = f"it holds {used} of a quota of {quota}"
        return ArtifactStoreError(
            f"{self.stage} was stopped before the artifact store is full: {what}",
            where=str(self.stage),
            hint=f"{_remedy(self.settings)}; then submit the job again: what was made is kept",
        )


def _remedy(settings: Settings) -> str:
    if settings.store_quota_bytes is None:
        return "free some space, or give the store a larger volume"
    return "raise EYRIE_STORE_QUOTA_BYTES or free some space"
