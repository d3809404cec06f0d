"""Shards of rows: `rows_A-B/` holds everything that came of conversations A to B, with a manifest of its own.

A shard is written when the last of its conversations is done, while later ones go on; then its rows leave memory.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from services.worker.data.rows import RowFolder
from services.worker.data.turns import Written
from shared.artifact_store import file_sha256, link_or_copy
from shared.schemas.prepared import Prepared

REJECTS = "rejects.jsonl"


class ShardWriter:
    """Gathers what came of conversations, in whatever order they end.

    Args:
        out: where the shards go.
        work: for what is put together at the end.
        rows: where the rows' states lie.
        size: conversations in one shard.
        total: conversations in all.
    """

    def __init__(self, out: Path, work: Path, rows: RowFolder, size: int, total: int) -> None:
        self.out, self.rows, self.size, self.total = out, rows, size, total
        self._open: dict[int, dict[int, _Part]] = {}
        self._rejects = work / "rejects"
        self._rejects.mkdir(parents=True, exist_ok=True)

    async def add(self, index: int, conversation: Prepared, written: Written) -> None:
        """Enter what became of conversation number `index`, and write its shard if it was the last one missing."""
        start = index - index % self.size
        end = min(start + self.size, self.total)
        shard = self._open.setdefault(start, {})
        shard[index] = _Part(conversation, written)
        if len(shard) == end - start:
            del self._open[start]
            await asyncio.to_thread(self._write, start, end, [shard[place] for place in sorted(shard)])

    def finish(self) -> None:
        """Put the shards' rejects together, in the order of the dataset."""
        with (self.out / REJECTS).open("w", encoding="utf-8") as file:
            for start in range(0, self.total, self.size):
                file.write((self._rejects / f"{start}.jsonl").read_text(encoding="utf-8"))

    def _write(self, start: int, end: int, parts: list["_Part"]) -> None:
        folder = self.out / f"rows_{start}-{end}"
        folder.mkdir()
        with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(line for part in parts for line in part.lines)
        for row_id in (row_id for part in parts for row_id in part.with_states):
            link_or_copy(self.rows.states_path(row_id), folder / f"{row_id}.safetensors")
        hashes = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
        manifest = {"rows": sum(len(part.lines) for part in parts), "sha256": hashes}
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        with (self._rejects / f"{start}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(item, ensure_ascii=False) + "\n" for part in parts for item in part.rejects)


class _Part:
    """One conversation's share of a shard, as small as it can be kept."""

    def __init__(self, conversation: Prepared, written: Written) -> None:
        self.lines = [row.model_dump_json() + "\n" for row in written.rows]
        self.with_states = [row.id for row in written.rows if row.has_states]
        self.rejects: list[dict[str, Any]] = [
            {
                "source": conversation.source,
                "line": conversation.line,
                "turn": refusal.turn,
                "reason": refusal.reason,
                "message": refusal.message,
            }
            for refusal in written.refusals
        ]
