"""Has other machines see a job's logs while they are written, where the artifact store is no shared folder."""

import logging
from contextlib import AbstractContextManager, nullcontext

from services.worker.beside import beside
from services.worker.run_control import RunControl
from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError

log = logging.getLogger(__name__)
INTERVAL_S = 10.0


def shown_logs(store: LocalArtifactStore, control: RunControl) -> AbstractContextManager[None]:
    """Publish the logs of a run's job every few seconds while the block lasts; a store that is away is asked again."""
    if not store.remote:
        return nullcontext()
    return beside(control, "log-upload", lambda: _publish(store, control.job_id), INTERVAL_S)


def _publish(store: LocalArtifactStore, job_id: str) -> float:
    try:
        store.publish(f"jobs/{job_id}/logs")
    except (ArtifactStoreError, OSError) as error:
        log.warning("job %s: its logs were not published: %s", job_id, error)
    return INTERVAL_S
