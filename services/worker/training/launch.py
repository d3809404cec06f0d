"""Starts the trainer, relays its events to the supervisor, and ends it with the stage.

One process on the CPU or for one GPU; `torchrun` with a rank for each GPU where several are leased. Its output goes
to the stage's own log.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.worker.integrations import trainer_variables
from services.worker.stage_context import Reporter
from services.worker.stage_run import STORE_UNUSABLE
from services.worker.supervision import without_loggers
from services.worker.training.event_follower import EventFollower
from services.worker.training.log_files import continue_logs
from services.worker.training.run_config import CONFIG_NAME, LOGS_NAME, RunConfig
from shared.errors import ArtifactStoreError, DivergedError, EyrieError, InternalError, StatusReason, UserError
from shared.settings import get_settings

MODULE, RANKS = "services.worker.training.main", "services.worker.training.ranks"
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the trainer, or a rank of several
REPOSITORY = Path(__file__).parents[3]
POLL_S = 0.1
LESS_HOST_MEMORY = "lower train.num_workers or train.pack_length"


class OutOfMemoryError(EyrieError):
    """The trainer ran out of GPU or host memory; `reason` says which."""

    def __init__(self, reason: StatusReason, message: str, hint: str) -> None:
        super().__init__(message, where="train", hint=hint)
        self.reason = reason


def run_trainer(config: RunConfig, gpus: Sequence[str], report: Reporter) -> None:
    """Run the trainer to its end.

    Raises:
        EyrieError: what the trainer reported: diverged, out of memory, a user's error, or internal.
    """
    follower, grace_s = EventFollower(config, report), get_settings().stop_grace_s
    process = subprocess.Popen(
        command(config.run / CONFIG_NAME, len(gpus), grace_s), env=_with_loggers(config, gpus), stdin=subprocess.DEVNULL
    )
    try:
        while process.poll() is None:
            follower.relay()
            time.sleep(POLL_S)
    finally:
        _end(process, grace_s)
        follower.relay()
    if process.returncode != 0 or follower.failure is not None:
        raise ending(process.returncode, follower.failure)


def command(config: Path, gpus: int, grace_s: int) -> list[str]:
    """The trainer's command line for so many GPUs (0: the CPU); its ranks have `grace_s` to save what they have."""
    if gpus < 2:
        return [sys.executable, "-m", MODULE, str(config)]
    torchrun = ["-m", RANKS, "--standalone", "--nproc-per-node", str(gpus)]
    torchrun += ["--shutdown-timeout", str(grace_s)]  # torchrun's own is 30 s
    return [sys.executable, *torchrun, "-m", MODULE, str(config)]


def environment(gpus: Sequence[str]) -> dict[str, str]:
    """The stage's environment; only the leased GPUs are visible, none on the CPU.

    OpenMP threads sleep while they wait: on cores that a verifier shares, spinning ones made a step 20 times slower.
    """
    path = os.environ.get("PYTHONPATH")
    return {
        "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads starve each other on busy cores
        **os.environ,
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{path}" if path else str(REPOSITORY),
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
    }


def _with_loggers(config: RunConfig, gpus: Sequence[str]) -> dict[str, str]:
    logs = config.run / LOGS_NAME
    continue_logs(config.run, config.earlier)
    for name in config.integrations:
        (logs / name).mkdir(parents=True, exist_ok=True)
    own = environment(gpus)
    return without_loggers(own) | trainer_variables(config.integrations, logs, own)


def ending(status: int, told: Mapping[str, Any] | None) -> EyrieError:
    """Why the trainer did not end well; `told` is its own account of it, if it gave one.

    Ranks that miss a killed one fail, too, and say so.
    """
    if status in KILLED and (told is None or told["reason"] == StatusReason.INTERNAL):
        return OutOfMemoryError(
            StatusReason.OOM_HOST,
            "the trainer was killed (signal 9), most often because host memory ran out",
            LESS_HOST_MEMORY,
        )
    if told is not None:
        return failure(told)
    hint = "the stage's log says why"
    if status == STORE_UNUSABLE:
        return ArtifactStoreError("the trainer could not write its files", where="train", hint=hint)
    return InternalError(f"the trainer ended with status {status}", hint=hint)


def failure(event: Mapping[str, Any]) -> EyrieError:
    """The trainer's `failed` event as the error it was."""
    reason, message = StatusReason(event["reason"]), str(event["message"])
    where, hint = str(event.get("where", "")), str(event.get("hint", ""))
    if reason is StatusReason.OOM_GPU:
        return OutOfMemoryError(reason, message, "lower train.pack_length or lease larger GPUs")
    if reason is StatusReason.OOM_HOST:
        return OutOfMemoryError(reason, message, LESS_HOST_MEMORY)
    known = {known.reason: known for known in (DivergedError, UserError, ArtifactStoreError)}
    return known.get(reason, InternalError)(message, where=where, hint=hint)


def _end(process: subprocess.Popen[bytes], grace_s: int) -> None:
    """Forward the end of the stage: SIGTERM saves the trainer's state, SIGKILL follows if it hangs."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
            return
        process.kill()
    process.wait()
