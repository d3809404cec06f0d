"""The files that loggers leave beside a run: taken over from an earlier attempt, and published at the end."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from services.worker.training.run_config import LOGS_NAME, RESUME_NAME


def continue_logs(run: Path, earlier: Iterable[Path]) -> None:
    """Start with the files of the latest attempt that can be gone on from. Its last points may come twice."""
    if (run / LOGS_NAME).exists():
        return
    for folder in earlier:
        if (folder / LOGS_NAME).is_dir() and any((folder / RESUME_NAME).glob("step_*")):
            copy_logs(folder / LOGS_NAME, run / LOGS_NAME)
            return


def copy_logs(source: Path, target: Path) -> None:
    """Copy a folder of logs, plain files only: W&B's links and Trackio's locks are of no use elsewhere."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".") and path.suffix != ".lock":
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
