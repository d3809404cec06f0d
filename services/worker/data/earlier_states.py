"""Hidden states that need not be made again: prefills of earlier attempts, and of other runs with equal rows.

States are found by their row's id; whether they fit the row is for whoever takes them to check.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from services.worker.data.rows import RowFolder, read_jsonl

WORK_ROWS = "rows"  # below a running stage's `work`
DATASET = "dataset"  # below a finished stage's `out`


class EarlierStates:
    """Looks states up in the folders of other capture runs.

    Args:
        folders: `work` folders of unfinished runs and `out` folders of finished ones, preferred ones first.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._work: list[RowFolder] = []
        self._laid_out: list[tuple[Path, dict[str, int]]] = []
        for folder in folders:
            if (folder / WORK_ROWS).is_dir():
                self._work.append(RowFolder(folder / WORK_ROWS, create=False))
            else:
                # No such stage, removed by now, or damaged since: another run's files never stop this one.
                with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                    index = read_jsonl(folder / DATASET / "rows.jsonl")
                    numbers = {entry["row_id"]: entry["index"] for entry in index}
                    self._laid_out.append((folder / DATASET / "hidden_states", numbers))

    def find(self, row_id: str) -> Iterator[Path]:
        """Files that may hold the states of a row."""
        for rows in self._work:
            if rows.has(row_id):
                yield rows.states_path(row_id)
        for folder, numbers in self._laid_out:
            if row_id in numbers:
                yield folder / f"hs_{numbers[row_id]}.safetensors"
