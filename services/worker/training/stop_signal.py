"""SIGTERM and SIGINT as a flag that is looked at between steps, where weights and optimizer agree."""

import signal
from types import FrameType

import torch
import torch.distributed as dist


class TrainingStoppedError(Exception):
    """Training was asked to stop, and its state is saved."""


class StopSignal:
    """Remembers that this process was asked to stop."""

    def __init__(self) -> None:
        self._asked = False

    def install(self) -> None:
        """Take over SIGTERM and SIGINT, and torchrun's repetitions of them."""
        signal.signal(signal.SIGTERM, self._remember)
        signal.signal(signal.SIGINT, self._remember)

    def requested(self, distributed: bool) -> bool:
        """Whether any rank was asked; every rank gets the same answer at the same step."""
        if not distributed:
            return self._asked
        flag = torch.tensor(int(self._asked), device=torch.accelerator.current_accelerator())
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def _remember(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
