"""What really ran: stage processes write here themselves, whatever Redis, gateway and worker believe.

One JSON object a line, appended whole, so that processes which are killed leave whole lines. A stage process also holds
a file lock for its job and one for each of its GPUs while it lives, frozen or not; finding one taken is a violation,
since the kernel frees the locks of the dead.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JOURNAL_VARIABLE = "EYRIE_CHAOS_JOURNAL"


class Journal:
    """A file of events and a folder of locks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "locks").mkdir(parents=True, exist_ok=True)

    @classmethod
    def from_environment(cls) -> "Journal":
        return cls(Path(os.environ[JOURNAL_VARIABLE]))

    def write(self, kind: str, **fields: Any) -> None:
        """Append an event; times are of the machine's monotonic clock, which all its processes share."""
        line = json.dumps({"kind": kind, "at": time.monotonic(), "pid": os.getpid(), **fields}) + "\n"
        descriptor = os.open(self.folder / "journal.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def read(self) -> list[dict[str, Any]]:
        """All events so far, in order of writing; a reader may come while a line is half written."""
        path = self.folder / "journal.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @contextlib.contextmanager
    def running(self, job_id: str, stage: str, token: str, gpus: tuple[str, ...]) -> Iterator[None]:
        """Be the one live stage run of a job, on its GPUs, for the length of a block."""
        names = [job_id, *(f"gpu-{gpu}" for gpu in gpus)]
        with contextlib.ExitStack() as stack:
            for name in names:
                lock = stack.enter_context((self.folder / "locks" / name).open("a"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self.write("overlap", what=name, job=job_id, stage=stage, token=token)
            self.write("start", job=job_id, stage=stage, token=token, gpus=list(gpus))
            yield
            self.write("end", job=job_id, stage=stage, token=token)
