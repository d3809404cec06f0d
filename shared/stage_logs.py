"""Logs of a job's stages: what their processes wrote. Below `jobs/ID/logs/`:

    STAGE-ATTEMPT.log    one run of a stage
    order.txt            names of the logs, in the order in which they were begun

Stages may run again after later ones, so their own order is not that of the logs.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from shared.artifact_store import LocalArtifactStore
from shared.schemas.job import Stage

LOG_NAME = re.compile(r"^([a-z]+)-([0-9]{1,9})$")
ORDER = "order.txt"


@dataclass(frozen=True)
class LogName:
    """Which run of which stage."""

    stage: Stage
    attempt: int

    def __str__(self) -> str:
        return f"{self.stage}-{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> "LogName | None":
        """The log that a name stands for, if it does."""
        match = LOG_NAME.match(text)
        if match is None or match[1] not in set(Stage):
            return None
        return cls(Stage(match[1]), int(match[2]))


def begin_log(store: LocalArtifactStore, job_id: str, name: LogName) -> Path:
    """Where a run that starts now shall write its log.

    Raises:
        ArtifactStoreError, OSError: the store cannot be written.
    """
    folder = store.folder(_folder(job_id))
    with store.place(f"{_folder(job_id)}/{ORDER}").open("a") as order:
        order.write(f"{name}\n")
    return folder / f"{name}.log"


def list_logs(store: LocalArtifactStore, job_id: str) -> list[LogName]:
    """The logs of a job, in the order in which they were begun."""
    files = (LogName.parse(file.removesuffix(".log")) for file in store.list(_folder(job_id)) if file.endswith(".log"))
    stages = list(Stage)
    known = sorted((name for name in files if name), key=lambda name: (stages.index(name.stage), name.attempt))
    try:
        lines = store.read(f"{_folder(job_id)}/{ORDER}").decode().splitlines()
    except KeyError:
        return known
    begun = {line: place for place, line in reversed(list(enumerate(lines)))}
    return sorted(known, key=lambda name: begun.get(str(name), -1))


def log_path(store: LocalArtifactStore, job_id: str, name: LogName) -> Path:
    """Where a log lies.

    Raises:
        KeyError: there is no such log.
    """
    return store.path(f"{_folder(job_id)}/{name}.log")


def _folder(job_id: str) -> str:
    return f"jobs/{job_id}/logs"
