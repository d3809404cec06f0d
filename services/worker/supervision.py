"""Process trees of stage runs: every process carries its run's token in its environment, and ends with the run.

torchrun starts its ranks in sessions of their own, and vLLM its engine; a process group does not hold them. The mark in
the environment does, and it survives the death of every parent.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

RUN_TOKEN_VARIABLE = "EYRIE_RUN_TOKEN"
STORE_VARIABLE = "EYRIE_STORE_ROOT"
SECRET_VARIABLES = ("EYRIE_REDIS_URL", "REDIS_URL")
PR_SET_PDEATHSIG = 1  # linux/prctl.h
POLL_S = 0.05
DEFAULTS = {
    "HF_HUB_OFFLINE": "1",  # nothing is downloaded
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    # Threads that wait for each other sleep instead of spinning: on busy cores that is several times faster.
    "OMP_WAIT_POLICY": "PASSIVE",
}


def marked_environment(token: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the run's mark, without what a stage must not know."""
    kept = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    return {**DEFAULTS, **kept, RUN_TOKEN_VARIABLE: token, "PYTHONUNBUFFERED": "1", **(extra or {})}


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies, however it dies (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def marked_processes(token: str) -> list[psutil.Process]:
    """All live processes of this machine with the run's mark, or one below it (`TOKEN.part`), but for the caller."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if (
                process.pid != os.getpid()
                and _belongs(process.environ().get(RUN_TOKEN_VARIABLE, ""), token)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
    return found


def run_tokens(store_root: Path) -> set[str]:
    """Tokens of all runs on a store that have live processes on this machine."""
    tokens = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            mark = environment.get(RUN_TOKEN_VARIABLE)
            if mark and environment.get(STORE_VARIABLE) == str(store_root):
                tokens.add(mark.split(".")[0])
    return tokens


def end_tree(token: str, leader: int | None, grace_s: float) -> None:
    """End all processes of a run: SIGTERM to its leader, then, after the grace, SIGKILL to whatever is left.

    Args:
        leader: pid of the run's first process, which ends its own children on SIGTERM; None to ask all of them.
        grace_s: seconds that they have.
    """
    if leader is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, signal.SIGTERM)
    else:
        _signal_all(token, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and marked_processes(token):
        time.sleep(POLL_S)
    while remaining := marked_processes(token):
        for process in remaining:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(remaining, timeout=1)


def _belongs(mark: str, token: str) -> bool:
    return mark == token or mark.startswith(f"{token}.")


def _signal_all(token: str, number: signal.Signals) -> None:
    for process in marked_processes(token):
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
