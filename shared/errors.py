"""Errors that a person reads: what was wrong, where, what to do.

Every error that leaves a service is an `EyrieError`. Its `reason` is one of the job status reasons, so that the same
exception serves the REST edge (as `problem+json`) and a stage (as the job's `status_reason`).
"""

from enum import StrEnum


class StatusReason(StrEnum):
    """Why a job is in its status; separate from what the status is."""

    USER_ERROR = "user_error"
    CAPACITY = "capacity"
    OOM_GPU = "oom_gpu"
    OOM_HOST = "oom_host"
    WORKER_LOST = "worker_lost"
    TIMEOUT = "timeout"
    STOPPED_BY_USER = "stopped_by_user"
    UPSTREAM_VERIFIER = "upstream_verifier"
    ARTIFACT_STORE = "artifact_store"
    DIVERGED = "diverged"
    INTERNAL = "internal"


def error_page(reason: StatusReason) -> str:
    """The page of the documentation about a reason: a path in the repository."""
    return f"docs/errors/{reason}.md"


class EyrieError(Exception):
    """An error with an address: `message` says what, `where` names the place, `hint` says what to do.

    Args:
        message: one sentence, without a trailing stop needed.
        where: file and line, row, tensor or field (a JSON pointer for a job document); may be empty.
        hint: what the reader can do about it; may be empty.
    """

    reason: StatusReason = StatusReason.INTERNAL

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text


class UserError(EyrieError):
    """The input cannot work, however often it is tried."""

    reason = StatusReason.USER_ERROR


class CapacityError(EyrieError):
    """More was asked for than exists or is free."""

    reason = StatusReason.CAPACITY


class VerifierError(EyrieError):
    """The verifier is unreachable, refuses, or answers what cannot be used."""

    reason = StatusReason.UPSTREAM_VERIFIER


class ArtifactStoreError(EyrieError):
    """The artifact store cannot be read or written (disk full, quota, permissions, a damaged file)."""

    reason = StatusReason.ARTIFACT_STORE


class DivergedError(EyrieError):
    """Training produced a loss or a weight that is not finite."""

    reason = StatusReason.DIVERGED


class StageTimeoutError(EyrieError):
    """A stage used up its time limit."""

    reason = StatusReason.TIMEOUT


class InternalError(EyrieError):
    """A defect of Eyrie itself; the log has the details."""

    reason = StatusReason.INTERNAL
