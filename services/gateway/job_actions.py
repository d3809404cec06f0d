"""What a person asks of a job: pause, resume, cancel, delete. The artifact store knows of it before the answer goes
out.
"""

from functools import partial

from services.gateway.deps import Backend
from services.gateway.problems import Problem
from services.gateway.registry.drafts import DraftRegistry
from shared import attempts
from shared.draft_entries import take_back_draft
from shared.schemas.job import JobRecord, JobStatus, Stage, UserAction
from shared.state_machine import STOPPING, TERMINAL

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
    if record.status == JobStatus.CANCELLED:
        take_back_draft(backend.jobs, record.id, record.stage(Stage.PUBLISH).key)
    if record.status in OUT_OF_LINE:
        backend.queue.remove(record.id, record.attempt)
    elif record.status == JobStatus.QUEUED and not backend.queue.is_waiting(record.id, record.attempt):
        backend.queue.enqueue(record.id, record.attempt)
    return record


def remove(backend: Backend, record: JobRecord) -> None:
    """Delete a job that has ended.

    Raises:
        Problem: 409 while it has not, while its worker is still tidying up, and while there is a draft that it made.
    """
    if record.status not in TERMINAL:
        raise Problem(
            409,
            f"the job is {record.status}; only jobs that have ended can be deleted: cancel it first",
            errors=[{"source": "job", "pointer": "/status", "message": record.status.value}],
        )
    if backend.jobs.run_token(record.id) is not None:
        detail = "the job's worker is still tidying up after it; ask again in a moment"
        raise Problem(409, detail, headers={"Retry-After": "1"})
    draft = DraftRegistry(backend.artifacts).get(record.draft) if record.draft else None
    if draft is not None and draft.job_id == record.id:
        raise Problem(
            409,
            f"the job made the draft {draft.id}, whose lineage leads to it; delete the draft first",
            errors=[{"source": "job", "pointer": "/draft", "message": draft.id}],
        )
    backend.jobs.delete(record)


def _settle_if_idle(record: JobRecord) -> None:
    if record.token is None:
        attempts.settle(record)
