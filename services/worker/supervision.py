"""Process trees of stage runs: every process carries its run's token in its environment, and ends with the run.

torchrun starts its ranks in sessions of their own, and vLLM its engine; a process group does not hold them. Two things
do. Each tree stands below a guard (`process_guard`) that the kernel makes the parent of every orphan in it, and that
ends them all when its command or its worker ends. And the mark in the environment survives the death of every parent,
the guard's too: whoever comes later finds what is left by it.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from services.worker.gpu_locks import is_real

RUN_TOKEN_VARIABLE = "EYRIE_RUN_TOKEN"
JOB_VARIABLE = "EYRIE_RUN_JOB"
GPUS_VARIABLE = "EYRIE_RUN_GPUS"
STORE_VARIABLE = "EYRIE_STORE_ROOT"
WORKER_VARIABLE = "EYRIE_WORKER_ID"
PARENT_VARIABLE = "EYRIE_PARENT_PID"
SECRET_VARIABLES = (
    *("EYRIE_REDIS_URL", "REDIS_URL", "EYRIE_REDIS_PASSWORD_FILE"),
    *("EYRIE_API_KEY", "EYRIE_API_KEY_FILE"),
)
# All others of AWS's tools are credentials, or say where some are to be had.
AWS_PREFIX, PUBLIC_AWS_VARIABLES = "AWS_", ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE")
LOGGER_PREFIXES = ("WANDB_", "MLFLOW_", "TRACKIO_")  # `integrations` says what of these reaches a trainer
GUARD = "services.worker.process_guard"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
POLL_S = 0.05
GUARD_EXTRA_S = 10.0  # what a guard may take for the ends of a tree, beyond the grace
DEFAULTS = {
    "HF_HUB_OFFLINE": "1",  # nothing is downloaded
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    # Threads that wait for each other sleep instead of spinning: on busy cores that is several times faster.
    "OMP_WAIT_POLICY": "PASSIVE",
}


def marked_environment(token: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the run's mark, without what a stage must not know."""
    kept = {name: value for name, value in without_loggers(os.environ).items() if not _is_secret(name)}
    return {**DEFAULTS, **kept, RUN_TOKEN_VARIABLE: token, "PYTHONUNBUFFERED": "1", **(extra or {})}


def without_loggers(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without anything that a logger reads."""
    return {name: value for name, value in environment.items() if not name.startswith(LOGGER_PREFIXES)}


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent dies, however it dies (Linux).

    The environment may say who the parent is, to notice that it has died already. It says so to its child alone: the
    variable is taken out of this process's environment, since the parent of a grandchild is another one.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    expected = int(os.environ.pop(PARENT_VARIABLE, "0"))
    if expected and os.getppid() != expected:
        os.kill(os.getpid(), signal.SIGTERM)


class GuardedProcess:
    """A command with everything it starts, below a guard; `end` leaves nothing of it."""

    def __init__(self, process: "subprocess.Popen[bytes]", mark: str) -> None:
        self.process, self.mark = process, mark

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: IO[bytes],
        grace_s: float,
        keep: Sequence[int] = (),
    ) -> "GuardedProcess":
        """Start a command in a session of its own.

        Args:
            environment: from `marked_environment`.
            output: where its standard output and error go.
            grace_s: seconds between SIGTERM and SIGKILL when it has to end.
            keep: descriptors that guard and command inherit, such as locks.
        """
        kept = ",".join(map(str, keep))
        process = subprocess.Popen(
            [sys.executable, "-m", GUARD, f"{grace_s:g}", kept, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, PARENT_VARIABLE: str(os.getpid())},
            pass_fds=tuple(keep),
            start_new_session=True,  # what kills the worker's group leaves the guard to its work
        )
        return cls(process, environment[RUN_TOKEN_VARIABLE])

    def end(self, grace_s: float) -> None:
        """End the command and its whole tree: SIGTERM, and after the grace SIGKILL; at once without a grace."""
        if grace_s > 0:
            self._signal_guard(signal.SIGTERM, grace_s)
        self._signal_guard(signal.SIGQUIT, GUARD_EXTRA_S)
        end_tree(self.mark, None, 0.0)
        self.process.wait()

    def _signal_guard(self, number: signal.Signals, timeout_s: float) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)


def marked_processes(token: str) -> list[psutil.Process]:
    """All live processes of this machine with the run's mark, or one below it (`TOKEN.part`), but for the caller."""
    return [p for p, environment in _live_processes() if _belongs(environment.get(RUN_TOKEN_VARIABLE, ""), token)]


def live_runs(store_root: Path) -> set[tuple[str, str]]:
    """(Job id, token) of all runs on a store that have live processes on this machine."""
    return {
        (environment.get(JOB_VARIABLE, ""), environment[RUN_TOKEN_VARIABLE].split(".")[0])
        for _, environment in _live_processes()
        if environment.get(RUN_TOKEN_VARIABLE) and environment.get(STORE_VARIABLE) == str(store_root)
    }


def gpus_in_use(store_root: Path) -> set[str]:
    """GPUs that any marked process of this machine was started for; faked ones exist within one store only."""
    used = set()
    for _, environment in _live_processes():
        ours = environment.get(STORE_VARIABLE) == str(store_root)
        used |= {gpu for gpu in environment.get(GPUS_VARIABLE, "").split(",") if gpu and (ours or is_real(gpu))}
    return used


def end_tree(token: str, leader: int | None, grace_s: float) -> None:
    """End all processes of a run: SIGTERM to its leader, then, after the grace, SIGKILL to whatever is left.

    Args:
        leader: pid of the run's first process, which ends its own children on SIGTERM; None to ask those whose parent
            is none of the run's.
        grace_s: seconds that they have.
    """
    if leader is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, signal.SIGTERM)
    _end(lambda: marked_processes(token), grace_s, ask=leader is None)


def end_worker_tree(worker_id: str, grace_s: float) -> None:
    """End what a worker's work horse left when it died; guards give their trees the grace that they were told."""
    _end(lambda: [p for p, e in _live_processes() if e.get(WORKER_VARIABLE) == worker_id], grace_s, ask=True)


def kill_all(find: Callable[[], list[psutil.Process]]) -> None:
    """Send SIGKILL to what `find` finds, until it finds nothing; what cannot be killed is left after a while."""
    deadline = time.monotonic() + GUARD_EXTRA_S
    while (remaining := find()) and time.monotonic() < deadline:
        for process in remaining:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(POLL_S)


def with_descendants(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Processes and everything below them, alive, but for the caller."""
    found = {process.pid: process for process in processes}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found |= {child.pid: child for child in process.children(recursive=True) if is_alive(child)}
    found.pop(os.getpid(), None)
    return list(found.values())


def is_alive(process: psutil.Process) -> bool:
    """Tell a process that runs, sleeps or is stopped from one that is gone or only waits to be reaped."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _is_secret(name: str) -> bool:
    return name in SECRET_VARIABLES or (name.startswith(AWS_PREFIX) and name not in PUBLIC_AWS_VARIABLES)


def _live_processes() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            if environment.get(RUN_TOKEN_VARIABLE) and process.pid != os.getpid() and is_alive(process):
                yield process, environment


def _belongs(mark: str, token: str) -> bool:
    return mark == token or mark.startswith(f"{token}.")


def _end(find: Callable[[], list[psutil.Process]], grace_s: float, *, ask: bool) -> None:
    if ask and grace_s > 0:
        _ask_to_end(find())
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and find():
        time.sleep(POLL_S)
    kill_all(lambda: with_descendants(find()))


def _ask_to_end(processes: list[psutil.Process]) -> None:
    pids = {process.pid for process in processes}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.ppid() not in pids:
                process.send_signal(signal.SIGTERM)
