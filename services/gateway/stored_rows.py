"""Rows of a job as they are stored: ids and loss mask, from capture's dataset, or from generate's shards before that.

In: a job's record. Out: pages of `RowSummary`, and single rows with every id. The dataset is mapped, not read: a page
costs the same however many rows there are. A row's id is only ever compared, never made part of a path.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, Field

from services.gateway.paging import unknown_after
from services.gateway.problems import Problem, not_found
from shared.artifact_store import LocalArtifactStore
from shared.manifests import read_manifest
from shared.schemas.job import JobRecord, Stage
from shared.schemas.manifest import Manifest

INDEX = "dataset/rows.jsonl"
ARROW_SUFFIX = ".arrow"
SHARD_INDEX = "/rows.jsonl"

Split = Literal["train", "val"]


class RowSummary(BaseModel):
    """One row in a list."""

    row_id: str
    line: int | None = Field(description="Of its source, from 1.")
    source: str | None = Field(description="File of the dataset.")
    split: Split
    seq_len: int = Field(description="Ids that have a hidden state.")
    supervised: int = Field(description="Ids under the loss mask.")
    finish_reason: str | None


@dataclass(frozen=True)
class StoredRow:
    """One row with its ids.

    Attributes:
        input_ids, loss_mask: [S].
        last_id: the target of the last state; None for rows that came as token ids.
    """

    summary: RowSummary
    input_ids: list[int]
    loss_mask: list[int]
    last_id: int | None


class CapturedRows:
    """Rows of a finished capture stage: an index beside a saved `datasets` folder."""

    stage = Stage.CAPTURE

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.index = folder / INDEX
        paths = sorted(entry.path for entry in manifest.files if entry.path.endswith(ARROW_SUFFIX))
        self.tables = [folder / path for path in paths]

    def entries(self) -> Iterator[tuple[RowSummary, Any]]:
        """Yield the index."""
        for line in _lines(self.index):
            yield _summary(line), line

    def read(self, entry: Any) -> StoredRow:
        """The row of an index entry."""
        columns = _table_row(self.tables, entry["index"])
        return StoredRow(_summary(entry), columns["input_ids"], columns["loss_mask"], entry.get("last_id"))


class GeneratedRows:
    """Rows of a finished generate stage, shard after shard."""

    stage = Stage.GENERATE

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        shards = [entry.path for entry in manifest.files if entry.path.endswith(SHARD_INDEX)]
        self.shards = [folder / path for path in sorted(shards, key=_first_conversation)]

    def entries(self) -> Iterator[tuple[RowSummary, Any]]:
        """Yield every row."""
        for shard in self.shards:
            for document in _lines(shard):
                yield self.read(document).summary, document

    def read(self, entry: Any) -> StoredRow:
        """The row of a shard's line."""
        ids, mask = entry["input_ids"], entry["loss_mask"]
        described = {**entry, "row_id": entry["id"], "seq_len": len(ids), "supervised": sum(mask[1:])}
        return StoredRow(_summary(described), ids, mask, entry["last_id"])


Rows = CapturedRows | GeneratedRows


def rows_of(store: LocalArtifactStore, record: JobRecord) -> Rows:
    """The rows of a job.

    Raises:
        Problem: 409 while there are none yet; 404 where their files are gone.
    """
    kinds: tuple[type[CapturedRows] | type[GeneratedRows], ...] = (CapturedRows, GeneratedRows)
    for kind in kinds:
        key = record.stage(kind.stage).manifest
        manifest = read_manifest(store, key) if key else None
        if manifest is not None:
            try:
                return kind(store.path(manifest.root), manifest)
            except KeyError:
                raise not_found("file", f"of the rows of {record.id}") from None
    raise Problem(409, "the job has no rows yet; it has when its generate stage is done")


def page_of_rows(rows: Rows, after: str | None, limit: int, split: Split | None) -> tuple[list[RowSummary], bool]:
    """At most `limit` rows that follow `after`, and whether there are more.

    Raises:
        Problem: 422, there is no row `after`.
    """
    found: list[RowSummary] = []
    begun = after is None
    for summary, _ in rows.entries():
        if not begun:
            begun = summary.row_id == after
        elif split in (None, summary.split):
            found.append(summary)
            if len(found) > limit:
                return found[:limit], True
    if not begun:
        raise unknown_after(after or "")
    return found, False


def find_row(rows: Rows, row_id: str) -> StoredRow:
    """One row.

    Raises:
        Problem: 404.
    """
    for summary, entry in rows.entries():
        if summary.row_id == row_id:
            return rows.read(entry)
    raise not_found("row", row_id)


def _summary(entry: dict[str, Any]) -> RowSummary:
    return RowSummary.model_validate({name: entry.get(name) for name in RowSummary.model_fields})


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except FileNotFoundError:
        raise not_found("file", path.name) from None


def _table_row(tables: list[Path], index: int) -> dict[str, list[int]]:
    """Columns of row `index` over all tables, one after the other."""
    for path in tables:
        try:
            mapped = pa.memory_map(str(path))
        except FileNotFoundError:
            raise not_found("file", path.name) from None
        with mapped, pa.ipc.open_stream(mapped) as stream:
            for batch in stream:
                if index < batch.num_rows:
                    row = batch.slice(index, 1).to_pydict()
                    return {name: row[name][0] for name in ("input_ids", "loss_mask")}
                index -= batch.num_rows
    raise not_found("row", str(index))


def _first_conversation(path: str) -> int:
    return int(path.split("/", 1)[0].split("_")[1].split("-")[0])
