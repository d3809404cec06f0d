"""Has other machines see a job's logs while they are written, where the artifact store is no shared folder."""

import logging
import threading
from types import TracebackType
from typing import Self

from services.worker.run_control import RunControl
from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError

log = logging.getLogger(__name__)
INTERVAL_S = 10.0
END_S = 5.0  # what an upload that is under way may still take when the stage has ended


class LogUpload:
    """Publishes the logs of a run's job every few seconds while a stage runs; use it as a context manager.

    A thread of its own does it: a store that hangs must not keep the run from renewing its lease, nor from hearing that
    it shall stop. One that is away is asked again later.
    """

    def __init__(self, store: LocalArtifactStore, control: RunControl) -> None:
        self.store, self.control = store, control
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="log-upload", daemon=True)

    def __enter__(self) -> Self:
        if self.store.remote:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread.is_alive():
            with self.control.kept_alive():
                self._thread.join(END_S)

    def _go_on(self) -> None:
        job_id = self.control.job_id
        while not self._end.wait(INTERVAL_S):
            try:
                self.store.publish(f"jobs/{job_id}/logs")
            except (ArtifactStoreError, OSError) as error:
                log.warning("job %s: its logs were not published: %s", job_id, error)
