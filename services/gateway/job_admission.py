"""Takes a job in: one document, checked, becomes one record and one message, however often it is sent."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.gateway.deps import Backend
from services.gateway.job_checks import require_acceptable
from services.gateway.job_view import show_job
from services.gateway.problems import Problem
from shared.ids import new_id
from shared.job_store import JobNotFound
from shared.presets import resolve
from shared.schemas.job import JobRecord, UserAction
from shared.schemas.manifest import canonical_digest
from shared.schemas.spec import JobSpec
from shared.state_machine import ACTIONS, after_action


@dataclass(frozen=True)
class Admitted:
    """The answer to a submitted document: the job as it was first shown, and whether this call made it."""

    job_id: str
    body: str
    made: bool


def admit(backend: Backend, document: dict[str, Any], key: str | None) -> Admitted:
    """Create the job that a document describes, or give the answer again that its idempotency key stands for.

    Raises:
        UserError, pydantic.ValidationError: the document cannot be accepted.
        Problem: 409 while the key's first request is under way, 422 when the key was used with another document,
            429 when too many jobs wait.
    """
    spec = resolve(document)
    if key is None:
        return _admitted(backend, _create(backend, spec, new_id("job")))
    body = canonical_digest(document)
    claim = backend.idempotency.claim(key, body, new_id("job"))
    if claim.state == "conflict":
        raise Problem(
            422,
            "this idempotency key was used with another document; use a new key for a new job",
            errors=[_key_field("used with another document")],
        )
    if claim.state == "pending":
        raise Problem(
            409,
            "the first request with this idempotency key is still under way; ask again",
            errors=[_key_field("its first request is still under way")],
            headers={"Retry-After": "1", "x-should-retry": "false"},
        )
    if claim.state == "done":
        return Admitted(claim.job_id, claim.answer, made=False)
    admitted = _create_once(backend, spec, key, body, claim.job_id)
    backend.idempotency.settle(key, body, admitted.job_id, admitted.body)
    return admitted


def retry(backend: Backend, record: JobRecord) -> tuple[JobRecord, bool]:
    """Make the job that does a failed or cancelled one again, or find the one that does already.

    Returns:
        Its record, and whether it was made by this call.

    Raises:
        ActionRefused: the job has not failed, and was not cancelled.
        Problem: 409 when the job that does it again has ended badly, too; 429 when too many jobs wait.
        UserError: what the document names is not there any more.
    """
    after_action(UserAction.RETRY, record.status, record.requested)
    retry_id = backend.jobs.archive.link_retry(record.id, new_id("job"))
    try:
        again = backend.jobs.get(retry_id)
    except JobNotFound:
        return _create(backend, record.spec, retry_id, retry_of=record.id), True
    if again.status in ACTIONS[UserAction.RETRY]:
        raise Problem(409, f"the job was tried again as {again.id}, which is {again.status}: retry that one")
    return again, False


def _create_once(backend: Backend, spec: JobSpec, key: str, body: str, job_id: str) -> Admitted:
    try:
        return _admitted(backend, backend.jobs.get(job_id), made=False)  # a gateway died after it had made it
    except JobNotFound:
        pass
    try:
        record = _create(backend, spec, job_id, keep=lambda: backend.idempotency.keep(key, body, job_id))
    except BaseException:
        if not backend.jobs.archive.has(job_id):
            backend.idempotency.free(key)
        raise
    return _admitted(backend, record)


def _admitted(backend: Backend, record: JobRecord, *, made: bool = True) -> Admitted:
    return Admitted(record.id, show_job(backend, record).model_dump_json(), made)


def _create(
    backend: Backend,
    spec: JobSpec,
    job_id: str,
    *,
    retry_of: str | None = None,
    keep: Callable[[], object] = lambda: None,
) -> JobRecord:
    """Make a job; `keep` is called when nothing speaks against it any more."""
    checked = require_acceptable(backend, spec)
    most = backend.settings.max_queued_jobs
    if not backend.jobs.reserve(job_id, most):
        raise Problem(
            429,
            f"{most} jobs are waiting already; try again when some have started, or add workers",
            headers={"Retry-After": "30"},
        )
    try:
        keep()
        record = backend.jobs.create(checked, job_id, retry_of)
    except BaseException:
        backend.jobs.give_place_back(job_id)
        raise
    backend.queue.enqueue(record.id, record.attempt)
    return record


def _key_field(message: str) -> dict[str, str]:
    return {"source": "header", "pointer": "/Idempotency-Key", "message": message}
