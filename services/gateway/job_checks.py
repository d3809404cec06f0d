"""What stands against a job, found before it starts: the same for a plan and for a job that is created."""

from collections.abc import Iterator

from services.gateway.capacity import check_capacity
from services.gateway.deps import Backend
from shared.fleet import Fleet
from shared.schemas.spec import JobSpec
from shared.submission import FieldError, SubmissionError, check_submission
from shared.verifier_config import visible_verifier_config


def check_job(backend: Backend, spec: JobSpec) -> tuple[JobSpec, list[FieldError]]:
    """The document as it would be stored, and everything that stands against it."""
    errors: list[FieldError] = []
    complete = spec
    try:
        complete = check_submission(spec, backend.artifacts, backend.settings.verifier_url)
    except SubmissionError as error:
        errors += error.errors
    errors += _fleet_errors(backend, spec)
    return complete, errors


def require_acceptable(backend: Backend, spec: JobSpec) -> JobSpec:
    """The document as it shall be stored.

    Raises:
        SubmissionError: with everything that stands against it.
    """
    complete, errors = check_job(backend, spec)
    if errors:
        raise SubmissionError(errors)
    return complete


def _fleet_errors(backend: Backend, spec: JobSpec) -> Iterator[FieldError]:
    try:
        backend.verifier.check(spec)
    except SubmissionError as error:
        yield from error.errors
    try:
        config = visible_verifier_config(spec.verifier.model, spec.verifier.revision)
        check_capacity(spec, Fleet(backend.jobs.redis).workers(), config)
    except SubmissionError as error:
        yield from error.errors
