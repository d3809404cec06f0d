"""All that speculators' trainer needs to run on a CPU, in one place. On CUDA none of it is used.

The library assumes an accelerator in four ways; each is met at a seam:

- it moves model and batches to a device *index*: the trainer's `local_rank` is set to the CPU device;
- it names the autocast device `cuda` when there is no accelerator: set to `cpu`, where float32 means no autocast at
all;
- its step timer synchronises the accelerator: a subclass that does not takes its place;
- its loaders pin memory: harmless without an accelerator, so that only the warning is silenced.

Attention (`sdpa`), loss (`eager`) and type (`float32`) are ordinary options: see `attention` and `library_config`.
"""

import time
import warnings
from typing import Any

import torch
from speculators.train import trainer as library


class CpuStepTimer(library._StepTimer):
    """The library's timer without device synchronisation or device memory."""

    def mark(self, name: str) -> None:
        """Take the time under `name`, in seconds."""
        if self.enabled:
            self._marks[name] = time.perf_counter()

    def now(self) -> float | None:
        """The time in seconds, or None while the step is not timed."""
        return time.perf_counter() if self.enabled else None


def install() -> None:
    """Put the CPU's step timer where the trainer looks it up, and silence what does not apply."""
    library._StepTimer = CpuStepTimer
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    warnings.filterwarnings("ignore", message="In CPU autocast.*")


def steer(trainer: Any) -> None:
    """Point a trainer that is being set up at the CPU."""
    trainer.local_rank = torch.device("cpu")
    trainer.device_type = "cpu"
