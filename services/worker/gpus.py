"""Which GPUs this worker may use, and leasing them for a stage: all that it asks for, or none."""

import hashlib
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from services.worker.run_control import RunControl
from shared.errors import CapacityError

WAIT_S = 1.0


def local_gpus(setting: str) -> list[str]:
    """GPUs of this worker: those of the setting (`0,1` or UUIDs), else all that `nvidia-smi` lists, by UUID."""
    if setting.strip():
        return [part.strip() for part in setting.split(",") if part.strip()]
    try:
        listing = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return []
    return listing.stdout.split() if listing.returncode == 0 else []


def require_gpus(available: int, wanted: int, where: str) -> None:
    """Refuse a job that asks for more GPUs than this worker has.

    Raises:
        CapacityError
    """
    if wanted > available:
        raise CapacityError(
            f"{wanted} GPUs are asked for and this worker has {available}",
            where=where,
            hint="ask for at most that many" if available else "ask for 0 to run on the CPU, or add a worker with GPUs",
        )


@contextmanager
def leased_gpus(control: RunControl, available: list[str], count: int, where: str) -> Iterator[list[str]]:
    """Lease `count` of the available GPUs for the length of a block; waits until they are free.

    Raises:
        CapacityError: this worker has fewer.
        Interrupted, Fenced: while waiting.
    """
    require_gpus(len(available), count, where)
    chosen = _take(control, available, count)
    try:
        if chosen:
            control.end_strays()  # a lease may have lapsed before the processes that use its GPU were gone
        yield chosen
    finally:
        control.release([_key(gpu) for gpu in chosen])


def _take(control: RunControl, available: list[str], count: int) -> list[str]:
    if count == 0:
        return []
    started = time.monotonic()
    while True:
        taken: list[str] = []
        for gpu in available:
            if control.hold([_key(gpu)]):
                taken.append(gpu)
            if len(taken) == count:
                return taken
        control.release([_key(gpu) for gpu in taken])
        # Runs that want several step back for different times, so that two of them cannot starve each other.
        control.wait(WAIT_S + _jitter(control.token, time.monotonic() - started))


def _jitter(token: str, waited: float) -> float:
    return hashlib.sha256(f"{token}:{waited}".encode()).digest()[0] / 255


def _key(gpu: str) -> str:
    return f"gpu:{socket.gethostname()}:{gpu}"
