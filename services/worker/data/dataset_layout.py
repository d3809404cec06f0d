"""Rows in the layout that speculators' trainer reads, written row by row: nothing is held in memory.

`dataset/`: a saved `datasets` folder (`input_ids`, `loss_mask`, `seq_len`; training rows first),
`hidden_states/hs_I.safetensors`, `rows.jsonl` (an index of where each row comes from).
"""

import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter

from services.worker.data.rows import Row
from services.worker.training.row_index import first_supervised
from shared.artifact_store import link_or_copy

COLUMNS = ("input_ids", "loss_mask", "seq_len")
FEATURES = Features({"input_ids": List(Value("int64")), "loss_mask": List(Value("int64")), "seq_len": Value("int64")})
WRITER_BATCH = 256  # rows held before they are written


class DatasetWriter:
    """Writes `dataset/`; use it as a context manager: the dataset is whole when the block has ended.

    Args:
        folder: the dataset's folder.
        work: for a temporary file.
    """

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder, self._temporary = folder, work / "rows.arrow"
        self.count = 0

    def __enter__(self) -> "DatasetWriter":
        (self.folder / "hidden_states").mkdir(parents=True)
        self._index = (self.folder / "rows.jsonl").open("w", encoding="utf-8")
        self._arrow = ArrowWriter(path=str(self._temporary), features=FEATURES, writer_batch_size=WRITER_BATCH)
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._index.close()
        if kind is None:
            self._arrow.finalize()
            dataset = Dataset.from_file(str(self._temporary))
            dataset.set_format("torch", columns=list(COLUMNS))
            dataset.save_to_disk(self.folder)
        else:
            self._arrow.close()
        self._temporary.unlink(missing_ok=True)

    def extend(self, rows: Iterable[tuple[Row, Path]]) -> None:
        """Add rows, each with its file of hidden states."""
        for row, states in rows:
            self._arrow.write({"input_ids": row.input_ids, "loss_mask": row.loss_mask, "seq_len": len(row.input_ids)})
            link_or_copy(states, self.folder / "hidden_states" / f"hs_{self.count}.safetensors")
            self._index.write(json.dumps(_index_entry(self.count, row), ensure_ascii=False) + "\n")
            self.count += 1


def _index_entry(number: int, row: Row) -> dict[str, Any]:
    return {
        "index": number,
        "row_id": row.id,
        "conversation": row.conversation,
        "turn": row.turn,
        "line": row.line,
        "source": row.source,
        "split": row.split,
        "seq_len": len(row.input_ids),
        "supervised": row.supervised,
        "first_supervised": first_supervised(row.loss_mask),
        "last_id": row.last_id,
        "finish_reason": row.finish_reason,
    }
