"""A function that nobody's message may have a worker call."""

from pathlib import Path
from typing import Any


def touch(job: Any, *_: Any) -> None:
    """Make the file that the message names."""
    Path(job.meta["file"]).touch()
