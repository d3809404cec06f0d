"""The trainer process: `python -m services.worker.training.main CONFIG.json`, or the same under torchrun.

Reads a `RunConfig`, runs speculators' `cli.main` with our trainer in its place, and leaves `result.json`. It exits
with 0 when done, 143 when stopped with its state saved, 1 with a `failed` event otherwise.
"""

import functools
import os
import signal
import sys
import traceback
from pathlib import Path

import torch
from speculators.train import cli

from services.worker.supervision import die_with_parent
from services.worker.training import cpu_adapter, loggers, packed_loss, verifier_weights
from services.worker.training.events import EventWriter
from services.worker.training.fused_loss_guard import guard_fused_loss
from services.worker.training.library_config import library_config
from services.worker.training.run_config import RunConfig
from services.worker.training.stop_signal import TrainingStoppedError
from services.worker.training.trainer import EyrieTrainer
from shared.errors import EyrieError, StatusReason

STOPPED = 128 + signal.SIGTERM


def main(arguments: list[str]) -> int:
    """Train as `arguments[0]` (a `RunConfig` in JSON) says; returns the exit status."""
    die_with_parent()
    run = RunConfig.model_validate_json(Path(arguments[0]).read_bytes())
    rank = int(os.environ.get("RANK", "0"))
    writer = EventWriter(run.run, active=rank == 0)
    try:
        train(run, writer)
    except TrainingStoppedError:
        return STOPPED
    except Exception as error:
        traceback.print_exc()
        # Any rank may be the one that failed.
        EventWriter(run.run, active=True).event("failed", rank=rank, **describe(error))
        return 1
    return 0


def train(run: RunConfig, writer: EventWriter) -> None:
    """Adapt the library where this machine needs it, and train."""
    torch.set_float32_matmul_precision(run.train.matmul_precision)
    verifier_weights.install()
    packed_loss.install()
    if run.device == "cpu":
        cpu_adapter.install()
    else:
        guard_fused_loss()
    loggers.install(writer)
    cli.Trainer = functools.partial(EyrieTrainer, run=run, writer=writer)
    cli.main(library_config(run))


def describe(error: Exception) -> dict[str, str]:
    """A failure as the stage can raise it again: reason, message, where, hint."""
    if isinstance(error, EyrieError):
        return {
            "reason": error.reason,
            "message": error.message,
            "where": error.where,
            "hint": error.hint,
        }
    reason = StatusReason.INTERNAL
    if isinstance(error, torch.OutOfMemoryError):
        reason = StatusReason.OOM_GPU
    elif isinstance(error, MemoryError):
        reason = StatusReason.OOM_HOST
    return {
        "reason": reason,
        "message": f"{type(error).__name__}: {error}"[:2000],
        "where": "",
        "hint": "",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
