"""One load for several jobs: before a managed verifier is stopped, the data of jobs in line that want it is made, too.

Such a job runs as always, under a token and a lease of its own, but as a guest: in the work horse of the run that has
the verifier, as far as that is needed, and back into line. Guests are those that wait when the run's own data is done;
who comes later does not keep it from training.
"""

import logging

from services.worker.run_control import Interrupted, RunControl, WorkerStopping
from services.worker.stage_inputs import StageInputs
from services.worker.verifier_session import VerifierSession
from shared.artifact_store import LocalArtifactStore
from shared.errors import EyrieError
from shared.ids import new_id
from shared.job_store import Fenced, JobStore
from shared.queue import JobQueue
from shared.schemas.job import DONE_STAGES, JobRecord, Stage
from shared.state_machine import GOES_ON

log = logging.getLogger(__name__)
DATA_STAGES = (Stage.PREPARE, Stage.GENERATE, Stage.CAPTURE)
MOST_LOOKED_AT = 1000


class GuestControl(RunControl):
    """The tie of a guest to its record, which holds no longer than its host's."""

    def __init__(self, host: RunControl, job_id: str) -> None:
        super().__init__(host.jobs, job_id, new_id("run"), host.lease_s, host.stopping)
        self._host = host

    def check(self) -> None:
        """As for any run.

        Raises:
            WorkerStopping: the host has to stop, for whatever reason: another run shall go on.
        """
        try:
            self._host.check()
        except (Interrupted, Fenced) as error:
            raise WorkerStopping from error
        super().check()


def guests(session: VerifierSession, jobs: JobStore, queue: JobQueue) -> list[JobRecord]:
    """Jobs in line whose data stages want exactly the verifier that `session` runs, the next one first."""
    if not session.has_started() or not (session.spec.verifier.managed and session.spec.verifier.managed.keep_warm):
        return []
    waiting = jobs.get_many(queue.jobs_in_line()[:MOST_LOOKED_AT])
    return [record for record in waiting if _waits_for_data(record) and _wants(record, session, jobs.artifacts)]


def _waits_for_data(record: JobRecord) -> bool:
    managed = record.spec.verifier.managed
    done = record.stage(Stage.CAPTURE).status in DONE_STAGES
    return record.status in GOES_ON and record.token is None and managed is not None and managed.keep_warm and not done


def _wants(record: JobRecord, session: VerifierSession, store: LocalArtifactStore) -> bool:
    try:
        inputs = StageInputs(record.spec, store)
    except EyrieError as error:
        log.info("job %s: no guest, since it cannot run: %s", record.id, error)
        return False
    return any(inputs.needs_verifier(stage) for stage in DATA_STAGES) and session.serves(record.spec, inputs)
