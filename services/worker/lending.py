"""One load for several jobs: before a managed verifier is stopped, the data of jobs in line that want it is made, too.

Such a job runs as always, under a token and a lease of its own, but as a guest: in the work horse of the run that has
the verifier, its host, as far as that is needed, and back to the head of the line. Guests are those that wait when the
host's own data is done; who comes later does not keep it from training.
"""

import contextlib
import logging
from collections.abc import Callable

from redis.exceptions import RedisError

from services.worker.run_control import Interrupted, RunControl
from services.worker.stage_inputs import StageInputs
from services.worker.verifier_session import VerifierSession
from shared.artifact_store import LocalArtifactStore
from shared.errors import EyrieError
from shared.ids import new_id
from shared.job_store import Fenced, JobNotFound, JobStore
from shared.logs import log_context
from shared.queue import JobQueue
from shared.schemas.job import DONE_STAGES, JobRecord, Stage
from shared.state_machine import GOES_ON

log = logging.getLogger(__name__)
DATA_STAGES = (Stage.PREPARE, Stage.GENERATE, Stage.CAPTURE)
MOST_LOOKED_AT = 1000


class GoesBack(Interrupted):
    """A guest is done, or can go no further, and goes back into line; the message says why, for people to read."""


class GuestControl(RunControl):
    """The tie of a guest to its record, which holds no longer than its host's.

    Attributes:
        host_end: what ended the host meanwhile.
    """

    def __init__(self, host: RunControl, job_id: str) -> None:
        super().__init__(host.jobs, job_id, new_id("run"), host.lease_s, host.stopping)
        self._host = host
        self.host_end: Interrupted | Fenced | None = None

    def check(self) -> None:
        """As for any run.

        Raises:
            GoesBack: the host has to stop, and its verifier with it.
        """
        super().check()
        try:
            self._host.check()
        except (Interrupted, Fenced) as error:
            self.host_end = error
            raise GoesBack("the run that had its verifier loaded was stopped; it waits for its turn") from error


def candidates(session: VerifierSession, jobs: JobStore, queue: JobQueue) -> list[JobRecord]:
    """Jobs in line whose data may want the verifier that `session` runs, as far as documents tell; the next one first.

    Raises:
        RedisError
    """
    verifier = session.spec.verifier
    if not session.has_started() or verifier.managed is None or not verifier.managed.keep_warm:
        return []
    waiting = jobs.get_many(queue.jobs_in_line()[:MOST_LOOKED_AT])
    return [record for record in waiting if record.spec.verifier == verifier and _waits_for_data(record)]


def lend(
    session: VerifierSession,
    waiting: list[JobRecord],
    host: RunControl,
    queue: JobQueue,
    run: Callable[[JobRecord, GuestControl], None],
) -> None:
    """Have the data made of those of `waiting` that want exactly the verifier that `session` runs.

    Raises:
        Interrupted, Fenced: the host has to stop.
    """
    back: list[JobRecord] = []
    with host.kept_alive():  # to look at a verifier's files, or at one that does not answer, takes longer than a lease
        for guest in waiting:
            host.check()
            if not _wants(guest, session, host.jobs.artifacts):
                continue
            if not session.answers():
                return
            host.say("waiting", f"keeps the verifier loaded for {guest.id}, which wants it too", Stage.CAPTURE)
            control = GuestControl(host, guest.id)
            with log_context(job=guest.id, attempt=guest.attempt), contextlib.suppress(JobNotFound):
                run(guest, control)
            if control.host_end is not None:
                raise control.host_end
            with contextlib.suppress(RedisError):
                queue.line_up(guest.id, guest.attempt + 1, [(one.id, one.attempt + 1) for one in back])
            back.append(guest)


def _waits_for_data(record: JobRecord) -> bool:
    return record.status in GOES_ON and record.token is None and record.stage(Stage.CAPTURE).status not in DONE_STAGES


def _wants(record: JobRecord, session: VerifierSession, store: LocalArtifactStore) -> bool:
    try:
        inputs = StageInputs(record.spec, store)
    except (EyrieError, OSError) as error:
        log.info("job %s: no guest, since it cannot run: %s", record.id, error)
        return False
    return any(inputs.needs_verifier(stage) for stage in DATA_STAGES) and session.serves(record.spec, inputs)
