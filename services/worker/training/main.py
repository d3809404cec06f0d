"""The trainer process: `python -m services.worker.training.main CONFIG.json`, or the same under torchrun.

Reads a `RunConfig`, runs speculators' `cli.main` with our trainer in its place, and leaves `result.json`. It exits
with 0 when done, 143 when stopped with its state saved, 1 with a `failed` event otherwise, and `STORE_UNUSABLE` where
not even that could be written.
"""

import contextlib
import functools
import os
import signal
import sys
import traceback
from pathlib import Path

import torch
from speculators.train import cli

from services.worker.stage_run import STORE_UNUSABLE
from services.worker.supervision import die_with_parent
from services.worker.training import cpu_adapter, loggers, packed_loss, verifier_weights
from services.worker.training.events import EventWriter
from services.worker.training.fused_loss_guard import guard_fused_loss
from services.worker.training.library_config import library_config
from services.worker.training.run_config import RunConfig
from services.worker.training.stop_signal import TrainingStoppedError
from services.worker.training.trainer import EyrieTrainer
from services.worker.unexpected import unexpected
from shared.errors import EyrieError
from shared.schemas.job import ErrorDetail

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
        with contextlib.suppress(OSError):  # the log lies in the store, which may be full
            traceback.print_exc()
        try:
            # Any rank may be the one that failed.
            EventWriter(run.run, active=True).event("failed", rank=rank, **describe(error))
        except OSError:
            return STORE_UNUSABLE
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
    detail = ErrorDetail.from_error(error) if isinstance(error, EyrieError) else unexpected(error, "train")
    return {"reason": detail.reason, "message": detail.message, "where": detail.where, "hint": detail.hint}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
