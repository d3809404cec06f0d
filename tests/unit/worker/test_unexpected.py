"""What exceptions that nobody expected mean for a job."""

import errno
import os

import pytest
import torch

from services.worker.unexpected import unexpected
from shared.errors import StatusReason


def loader_gone() -> Exception:
    """As torch raises it when the kernel has killed a data loader."""
    try:
        try:
            raise RuntimeError("DataLoader worker (pid 4242) is killed by signal: Killed. ")
        except RuntimeError as error:
            raise RuntimeError("DataLoader worker (pid(s) 4242) exited unexpectedly") from error
    except RuntimeError as error:
        return error


# What torch.save said on a file that could not grow.
TORCH_ON_A_FULL_DISK = "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"

CASES = [
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), StatusReason.ARTIFACT_STORE),
    (OSError(errno.EROFS, os.strerror(errno.EROFS)), StatusReason.ARTIFACT_STORE),
    (RuntimeError("I/O error: No space left on device (os error 28)"), StatusReason.ARTIFACT_STORE),
    (RuntimeError(TORCH_ON_A_FULL_DISK), StatusReason.ARTIFACT_STORE),
    (RuntimeError("DataLoader worker (pid 4242) is killed by signal: Killed. "), StatusReason.OOM_HOST),
    (loader_gone(), StatusReason.OOM_HOST),
    (MemoryError(), StatusReason.OOM_HOST),
    (torch.OutOfMemoryError("CUDA out of memory"), StatusReason.OOM_GPU),
    (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), StatusReason.INTERNAL),
    (ValueError("?"), StatusReason.INTERNAL),
]


@pytest.mark.parametrize(("error", "reason"), CASES)
def test_a_full_disk_and_too_little_memory_are_told_from_defects(error: Exception, reason: StatusReason) -> None:
    detail = unexpected(error, "train")
    assert detail.reason == reason
    assert str(error)[:100] in detail.message
