"""What a person asks of a job: pause, resume, cancel. The artifact store knows of it before the answer goes out."""

from functools import partial

from services.gateway.deps import Backend
from shared import attempts
from shared.schemas.job import JobRecord, JobStatus, UserAction
from shared.state_machine import STOPPING

OUT_OF_LINE = frozenset({JobStatus.PAUSED, JobStatus.CANCELLED})


def act(backend: Backend, job_id: str, action: UserAction) -> JobRecord:
    """Do it, and return the job as it is then.

    What a worker has stops when its processes are gone (`pausing`, `cancelling`); what waits stops at once.

    Raises:
        ActionRefused: the job's status does not allow it.
    """
    record = backend.jobs.update(job_id, partial(attempts.decide, action=action))
    if record.status in STOPPING and record.token is None:  # it waits for its next attempt
        record = backend.jobs.update(job_id, _settle_if_idle)
    if record.status in OUT_OF_LINE:
        backend.queue.remove(record.id, record.attempt)
    elif record.status == JobStatus.QUEUED and not backend.queue.is_waiting(record.id, record.attempt):
        backend.queue.enqueue(record.id, record.attempt)
    return record


def _settle_if_idle(record: JobRecord) -> None:
    if record.token is None:
        attempts.settle(record)
