"""Rows that need not be made again: those of earlier attempts, and of other runs that make equal rows of equal content.

A row is found by its id, which is the hash of its conversation's content and its turn. Where it stands in the dataset
(line, source, split) is the present conversation's, never the old row's. All rows of one conversation come from one
place, since a later turn has seen the answers to the earlier ones.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from services.worker.data.rows import Row, RowFolder, shard_folders
from shared.schemas.prepared import Prepared

ROWS = "rows"  # the folder of rows below a running stage's `work`
LINE_START = re.compile(rb'\{"id":"([^"]+)\.(\d+)"')

Found = dict[int, tuple[Row, Path]]


class RowSource(Protocol):
    """A place with rows of one earlier run."""

    def rows(self, conversation: str, turns: int) -> Found:
        """The rows of a conversation by turn, each with the path of its states, should it have some."""


class EarlierRows:
    """Looks rows up in the folders of other runs.

    Args:
        folders: `work` folders of unfinished runs and `out` folders of finished ones, preferred ones first.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._sources: list[RowSource] = []
        for folder in folders:
            if (folder / ROWS).is_dir():
                self._sources.append(WorkRows(folder / ROWS))
            elif shard_folders(folder):
                self._sources.append(ShardRows(folder))

    def find(self, conversation: Prepared, turns: int) -> Found:
        """What is known of a conversation, by turn; from the place that has most of it."""
        best: Found = {}
        for source in self._sources:
            found = source.rows(conversation.id, turns)
            best = found if len(found) > len(best) else best
        place = {"line": conversation.line, "source": conversation.source, "split": conversation.split}
        return {turn: (row.model_copy(update=place), states) for turn, (row, states) in best.items()}


class WorkRows:
    """Rows of a run that has not finished, a file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = RowFolder(folder, create=False)

    def rows(self, conversation: str, turns: int) -> Found:
        found: Found = {}
        for turn in range(turns):
            row_id = f"{conversation}.{turn}"
            try:
                found[turn] = (self.folder.read(row_id), self.folder.states_path(row_id))
            except (OSError, ValidationError):  # not there, removed by now, or of an older form
                continue
        return found


class ShardRows:
    """Rows of a finished run; its shards are read once, to learn where each row begins."""

    def __init__(self, out: Path) -> None:
        self._places: dict[str, list[tuple[Path, int]]] = {}
        for shard in shard_folders(out):
            self._index(shard)

    def rows(self, conversation: str, turns: int) -> Found:
        found: Found = {}
        for shard, offset in self._places.get(conversation, []):
            try:
                with (shard / "rows.jsonl").open("rb") as file:
                    file.seek(offset)
                    row = Row.model_validate_json(file.readline())
            except (OSError, ValidationError):
                continue
            if row.turn < turns:
                found[row.turn] = (row, shard / f"{row.id}.safetensors")
        return found

    def _index(self, shard: Path) -> None:
        try:
            with (shard / "rows.jsonl").open("rb") as file:
                offset = 0
                for line in file:
                    if start := LINE_START.match(line):
                        self._places.setdefault(start[1].decode(errors="replace"), []).append((shard, offset))
                    offset += len(line)
        except OSError:
            return  # removed by now
