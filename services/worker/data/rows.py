"""Rows: the token ids of one assistant turn, or of one row that came as ids, with the mask of what is learnt.

While a stage runs, each row that the verifier had a part in is `ROW.json`, with its states in `ROW.safetensors`, in the
attempt's `work/rows`. The JSON file is written last, by rename: where it exists, the row is whole. A finished stage has
shards, `rows_A-B/`, with all rows of conversations A to B.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from shared.data.turns import clip_answer
from shared.schemas.spec import Document


class Row(Document):
    """One row as the trainer reads it, and where it comes from.

    The trainer learns, from the state of position i, the token at i + 1. So every id of `input_ids` has a state, and
    the last token of an answer, which has none, is kept beside them as the target of the last state.
    """

    id: str = Field(description="Conversation id and turn.")
    conversation: str
    turn: int = Field(ge=0)
    line: int = Field(ge=1, description="Line of its file.")
    source: str = Field("", description="The dataset's file that it came from.")
    split: Literal["train", "val"]
    input_ids: list[int] = Field(min_length=1, description="Ids that have a hidden state, length S.")
    loss_mask: list[int] = Field(description="1 where the token is learnt, length S.")
    last_id: int | None = Field(None, description="The answer's last id; None for rows that came as token ids.")
    finish_reason: str
    has_states: bool = Field(description="Whether a file of hidden states lies beside the row.")
    clipped: bool = Field(False, description="Whether it was longer than data.max_seq_len.")
    content: str = ""
    reasoning: str = ""
    tool_calls: list[Any] = Field(default_factory=list, description="As the verifier returned them.")

    @model_validator(mode="after")
    def mask_fits(self) -> "Row":
        if len(self.loss_mask) != len(self.input_ids):
            raise ValueError("the loss mask must be as long as the token ids")
        return self

    @property
    def supervised(self) -> int:
        """Positions that the trainer learns: the first token has no state before it."""
        return sum(self.loss_mask[1:])

    @property
    def answer_tokens(self) -> int:
        """Tokens that were written, the last one included."""
        return sum(self.loss_mask) + (self.last_id is not None)


def answer_fields(prompt_ids: list[int], answer_ids: list[int], max_seq_len: int) -> dict[str, Any]:
    """The ids and the mask of a row that is an answer to a prompt, clipped to `max_seq_len` positions.

    Args:
        prompt_ids: shorter than `max_seq_len`.
        answer_ids: two at least, else nothing is learnt.
    """
    kept = clip_answer(prompt_ids, answer_ids, max_seq_len)
    return {
        "input_ids": [*prompt_ids, *kept[:-1]],
        "loss_mask": [0] * len(prompt_ids) + [1] * (len(kept) - 1),
        "last_id": kept[-1],
        "clipped": len(kept) < len(answer_ids),
    }


class RowFolder:
    """Rows of a running stage: `ROW.json`, and `ROW.safetensors` where there are states."""

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        self.folder = folder
        if create:
            folder.mkdir(parents=True, exist_ok=True)

    def states_path(self, row_id: str) -> Path:
        return self.folder / f"{row_id}.safetensors"

    def has(self, row_id: str) -> bool:
        return (self.folder / f"{row_id}.json").is_file()

    def write(self, row: Row) -> None:
        """Make a row whole; its states, if any, must be there already."""
        temporary = self.folder / f"{row.id}.json.tmp"
        temporary.write_text(row.model_dump_json(), encoding="utf-8")
        os.replace(temporary, self.folder / f"{row.id}.json")

    def forget(self, row_id: str) -> None:
        """Remove a row and its states."""
        (self.folder / f"{row_id}.json").unlink(missing_ok=True)
        self.states_path(row_id).unlink(missing_ok=True)

    def read(self, row_id: str) -> Row:
        return Row.model_validate_json((self.folder / f"{row_id}.json").read_bytes())


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file that a stage wrote."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def shard_folders(out: Path) -> list[Path]:
    """The shards of a finished generate stage, in order."""
    return sorted(out.glob("rows_*"), key=lambda path: int(path.name.split("_")[1].split("-")[0]))


def read_shards(out: Path) -> Iterator[tuple[Row, Path]]:
    """Yield the rows of a finished generate stage, in order, with the path at which their states lie or would lie."""
    for shard in shard_folders(out):
        with (shard / "rows.jsonl").open("rb") as file:
            for line in file:
                row = Row.model_validate_json(line)
                yield row, shard / f"{row.id}.safetensors"
