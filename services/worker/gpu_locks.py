"""A lock on a file for each GPU of this host: whoever runs on the GPU holds it, and it is free when they are all gone.

The lock (flock) belongs to an open file that processes inherit, so it lasts as long as one of them lives, whatever
happened to its parents, to Redis, or to the lease. The folder has to be local to the host; containers of one host that
share GPUs should share it.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from shared.errors import InternalError

REAL_PREFIXES = ("GPU-", "MIG-")
SITE_CHARACTERS = 12
LOOK_TRIES = 10  # somebody who only looks whether a lock is free has it for a moment
LOOK_S = 0.02


class GpuLocks:
    """The locks of one host.

    Args:
        folder: made if need be.
        store_root: names the site; a faked GPU exists within one site only, a real one for all of them.
    """

    def __init__(self, folder: Path, store_root: Path) -> None:
        self.folder, self.store_root = folder, store_root
        self.site = hashlib.sha256(str(store_root).encode()).hexdigest()[:SITE_CHARACTERS]

    def take(self, gpus: Iterable[str]) -> list[int] | None:
        """Lock all of `gpus`, or none.

        Returns:
            Descriptors to pass on to the processes that run on them, and to close; None when somebody holds one.

        Raises:
            InternalError: the folder cannot be used.
        """
        descriptors: list[int] = []
        for gpu in gpus:
            descriptors.append(self._open(gpu))
            if not _lock(descriptors[-1], fcntl.LOCK_EX):
                close_all(descriptors)
                return None
        return descriptors

    def is_free(self, gpu: str) -> bool:
        """Tell whether nobody holds a GPU's lock."""
        descriptor = self._open(gpu)
        try:
            return _lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def _open(self, gpu: str) -> int:
        name = gpu if is_real(gpu) else f"{self.site}-{gpu}"
        path = self.folder / f"{quote(name, safe='')}.lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with suppress(PermissionError):  # another uid made it; it did the same
                self.folder.chmod(0o1777)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            with suppress(PermissionError):
                os.fchmod(descriptor, 0o666)
        except OSError as error:
            raise InternalError(
                f"the lock of the GPU {gpu} cannot be opened: {error.strerror}",
                where=str(path),
                hint="EYRIE_GPU_LOCK_FOLDER has to be a folder of this host that every worker may write to",
            ) from error
        return descriptor


def close_all(descriptors: list[int]) -> None:
    """Close descriptors and forget them; the lock lasts while a process that inherited them lives."""
    while descriptors:
        os.close(descriptors.pop())


def _lock(descriptor: int, kind: int) -> bool:
    for _ in range(LOOK_TRIES if kind == fcntl.LOCK_EX else 1):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(LOOK_S if kind == fcntl.LOCK_EX else 0)
    return False


def is_real(gpu: str) -> bool:
    """Tell a GPU's UUID from the name of a faked one."""
    return gpu.startswith(REAL_PREFIXES)
