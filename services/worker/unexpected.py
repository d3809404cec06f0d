"""What an exception that nobody expected means for a job: in a stage's own process and in the trainer below it.

Torch and safetensors have no exceptions of their own for a full disk or a killed data loader: their words tell.
"""

import errno
import os
from collections.abc import Iterator

from shared.errors import StatusReason
from shared.schemas.job import ErrorDetail

STORE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})
WORDS = {
    StatusReason.ARTIFACT_STORE: (
        os.strerror(errno.ENOSPC),
        os.strerror(errno.EDQUOT),
        "PytorchStreamWriter failed",
        "] . unexpected pos ",  # torch.save: its writer is not where it would be, had all been written
    ),
    StatusReason.OOM_HOST: ("is killed by signal: Killed", "DefaultCPUAllocator: can't allocate memory"),
}


def unexpected(error: Exception, where: str) -> ErrorDetail:
    """What people read of it."""
    return ErrorDetail(
        reason=_reason(error),
        message=f"{type(error).__name__}: {error}"[:2000],
        where=where,
        hint="the stage's log has the details",
    )


def _reason(error: Exception) -> StatusReason:
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which a stage's process need not have imported
        return StatusReason.OOM_GPU
    for cause in _causes(error):
        if isinstance(cause, MemoryError):
            return StatusReason.OOM_HOST
        if isinstance(cause, OSError) and cause.errno in STORE_ERRORS:
            return StatusReason.ARTIFACT_STORE
        for reason, words in WORDS.items():
            if any(word in str(cause) for word in words):
                return reason
    return StatusReason.INTERNAL


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and what it followed from: of a killed loader, torch says in the last one only that it is gone."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
