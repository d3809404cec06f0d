"""Has other machines see a job's logs while they are written, where the artifact store is no shared folder."""

import logging
import time
from collections.abc import Callable

from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError

log = logging.getLogger(__name__)
INTERVAL_S = 10.0


class LogUpload:
    """Publishes the logs of a job now and then."""

    def __init__(self, store: LocalArtifactStore, job_id: str) -> None:
        self.store, self.job_id = store, job_id
        self._next = time.monotonic() + INTERVAL_S

    def after(self, watch: Callable[[], None]) -> Callable[[], None]:
        """A function that calls `watch`, and publishes when that is due; a store that is away is asked again later."""

        def both() -> None:
            watch()
            if time.monotonic() < self._next:
                return
            try:
                self.store.publish(f"jobs/{self.job_id}/logs")
            except ArtifactStoreError as error:
                log.warning("job %s: its logs were not published: %s", self.job_id, error)
            self._next = time.monotonic() + INTERVAL_S

        return both
