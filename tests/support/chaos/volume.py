"""A volume of its own for the artifact store, small enough to be filled.

A tmpfs where the machine lets us mount one: every write then fails with the kernel's own ENOSPC. Elsewhere a folder
with a quota of the service's (`EYRIE_STORE_QUOTA_BYTES`), which only stages are held to; the counts say which it was.
"""

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SIZE_BYTES = 32 * 1024**2
PIECE = b"\0" * 4096


@dataclass(frozen=True)
class Volume:
    """Where it lies, and what a full one means: the kernel refuses writes, or the service's quota is used up."""

    root: Path
    kind: Literal["enospc", "quota"]

    @property
    def settings(self) -> dict[str, str]:
        """What the services have to be told."""
        return {"EYRIE_STORE_QUOTA_BYTES": str(SIZE_BYTES)} if self.kind == "quota" else {}

    def fill(self) -> None:
        """Leave no byte free."""
        self._filler.parent.mkdir(parents=True, exist_ok=True)
        with self._filler.open("ab", buffering=0) as file:
            try:
                for _ in range(SIZE_BYTES // len(PIECE) + 1):
                    file.write(PIECE)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def empty(self) -> None:
        """Give the space back."""
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        return self.root / "filler"


@contextlib.contextmanager
def small_volume(folder: Path) -> Iterator[Volume]:
    """A volume of 32 MiB at `folder`, gone again after the block."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield Volume(folder, "enospc" if mounted else "quota")
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)
