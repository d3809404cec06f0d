"""Takes a job in: one document, checked, becomes one record and one message, however often it is sent."""

from typing import Any

from services.gateway.deps import Backend
from services.gateway.problems import Problem
from shared.ids import new_id
from shared.job_store import JobNotFound
from shared.presets import resolve
from shared.schemas.job import JobRecord
from shared.schemas.manifest import canonical_digest
from shared.schemas.spec import JobSpec
from shared.submission import check_submission


def admit(backend: Backend, document: dict[str, Any], key: str | None) -> tuple[JobRecord, bool]:
    """Create the job that a document describes, or find the one that its idempotency key stands for.

    Returns:
        The record, and whether it was made by this call.

    Raises:
        UserError, pydantic.ValidationError: the document cannot be accepted.
        Problem: 409 while the key's first request is under way, 422 when the key was used with another document,
            429 when too many jobs wait.
    """
    spec = resolve(document)
    if key is None:
        return _create(backend, spec, new_id("job")), True
    state, job_id = backend.idempotency.claim(key, canonical_digest(document), new_id("job"))
    if state == "conflict":
        raise Problem(
            422,
            "this idempotency key was used with another document; use a new key for a new job",
            errors=[_key_field("used with another document")],
        )
    if state == "pending":
        raise Problem(
            409,
            "the first request with this idempotency key is still under way; ask again",
            errors=[_key_field("its first request is still under way")],
            headers={"Retry-After": "1"},
        )
    if state == "done":
        return backend.jobs.get(job_id), False
    return _create_once(backend, spec, key, job_id)


def _create_once(backend: Backend, spec: JobSpec, key: str, job_id: str) -> tuple[JobRecord, bool]:
    try:
        record, made = backend.jobs.get(job_id), False  # a gateway died after it had made it
    except JobNotFound:
        try:
            record, made = _create(backend, spec, job_id), True
        except BaseException:
            if not backend.artifacts.exists(f"jobs/{job_id}/job.json"):
                backend.idempotency.free(key)
            raise
    backend.idempotency.settle(key)
    return record, made


def _create(backend: Backend, spec: JobSpec, job_id: str) -> JobRecord:
    checked = check_submission(spec, backend.artifacts, backend.settings.verifier_url)
    backend.verifier.check(spec)
    most = backend.settings.max_queued_jobs
    if backend.queue.waiting() >= most:
        raise Problem(
            429,
            f"{most} jobs are waiting already; try again when some have started, or add workers",
            headers={"Retry-After": "30"},
        )
    record = backend.jobs.create(checked, job_id)
    backend.queue.enqueue(record.id, record.attempt)
    return record


def _key_field(message: str) -> dict[str, str]:
    return {"source": "header", "pointer": "/Idempotency-Key", "message": message}
