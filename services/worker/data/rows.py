"""Rows: what the verifier read and wrote in one assistant turn, as files that a later attempt can take over.

While a stage runs, each row is `ROW.json`, with its states in `ROW.safetensors`, in the attempt's `work/rows`. The JSON
file is written last, by rename: where it exists, the row is whole.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shared.artifact_store import link_or_copy
from shared.schemas.spec import Document


class Row(Document):
    """One assistant turn.

    The trainer's `input_ids` and `loss_mask` follow from it: prompt plus answer without its last id, and a mask that is
    1 where the verifier wrote the token. The last id is the target of the last state.
    """

    id: str = Field(description="Conversation id and turn.")
    conversation: str
    turn: int = Field(ge=0)
    line: int = Field(ge=1, description="Line of the dataset.")
    split: Literal["train", "val"]
    prompt_ids: list[int] = Field(min_length=1)
    answer_ids: list[int] = Field(min_length=1)
    finish_reason: str
    has_states: bool = Field(description="Whether states were captured in the same request.")
    clipped: bool = Field(False, description="Whether the answer was longer than data.max_seq_len lets a row be.")
    content: str = ""
    reasoning: str = ""

    @property
    def input_ids(self) -> list[int]:
        """Ids that have a hidden state, length S."""
        return self.prompt_ids + self.answer_ids[:-1]

    @property
    def loss_mask(self) -> list[int]:
        """1 where the verifier wrote the token, length S."""
        return [0] * len(self.prompt_ids) + [1] * (len(self.answer_ids) - 1)


class RowFolder:
    """Rows of a running stage: `ROW.json`, and `ROW.safetensors` where there are states."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def states_path(self, row_id: str) -> Path:
        return self.folder / f"{row_id}.safetensors"

    def has(self, row_id: str) -> bool:
        return (self.folder / f"{row_id}.json").is_file()

    def write(self, row: Row) -> None:
        """Make a row whole; its states, if any, must be there already."""
        self.write_document(row.id, row.model_dump_json())

    def write_document(self, name: str, text: str) -> None:
        """Write `name.json`, whole."""
        temporary = self.folder / f"{name}.json.tmp"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.folder / f"{name}.json")

    def read(self, row_id: str) -> Row:
        return Row.model_validate_json((self.folder / f"{row_id}.json").read_bytes())

    def take_over(self, earlier: Iterable[Path]) -> int:
        """Link what earlier attempts had finished; return how many documents came.

        Args:
            earlier: their row folders, newest first.
        """
        taken = 0
        for folder in earlier:
            for document in sorted(folder.glob("*.json")):
                if self.has(document.stem):
                    continue
                states = document.with_suffix(".safetensors")
                if states.is_file():
                    link_or_copy(states, self.folder / states.name)
                link_or_copy(document, self.folder / document.name)
                taken += 1
        return taken


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file that a stage wrote."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def read_shards(out: Path) -> Iterator[tuple[Row, Path]]:
    """Yield the rows of a finished generate stage, in order, with the path at which their states lie or would lie."""
    for shard in sorted(out.glob("rows_*"), key=lambda path: int(path.name.split("_")[1].split("-")[0])):
        for document in read_jsonl(shard / "rows.jsonl"):
            row = Row.model_validate(document)
            yield row, shard / f"{row.id}.safetensors"
