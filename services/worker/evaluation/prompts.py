"""The prompts of a suite: what the verifier is asked while acceptance is counted.

In: the job's held-out conversations (`prepare`), or a dataset of its own. Out: for each the messages up to the first
place where the assistant speaks, or, where a row came as token ids, the ids before the first supervised one.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.data.rows import read_jsonl
from services.worker.data.turns import speaking_turns
from services.worker.stage_context import StageContext
from services.worker.training.row_index import first_supervised
from shared.data.files import read_record, read_rows
from shared.data.refusal import RowRejected
from shared.data.row_reader import RowReader
from shared.errors import UserError


@dataclass(frozen=True)
class Prompt:
    """Either `messages`, with the tools they may call, or `input_ids`."""

    messages: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    input_ids: list[int] | None = None


def suite_prompts(ctx: StageContext, name: str, dataset: str | None) -> list[Prompt]:
    """The first `evaluate.max_prompts` prompts of a suite.

    Args:
        dataset: the suite's own dataset; None: the job's held-out conversations.

    Raises:
        UserError: there is none.
    """
    rows = _held_out(ctx) if dataset is None else _from_dataset(ctx, ctx.inputs[f"suite:{name}"])
    found = (prompt for row in rows if (prompt := first_prompt(row)) is not None)
    prompts = list(itertools.islice(found, ctx.spec.evaluate.max_prompts))
    if not prompts:
        raise UserError(f"the suite {name} has no usable prompt", where="/evaluate/suites")
    return prompts


def first_prompt(row: Mapping[str, Any]) -> Prompt | None:
    """What the verifier read before its first answer, or None where nothing came before it.

    Args:
        row: `messages` and `tools`, or `input_ids` and `loss_mask`.
    """
    if row.get("messages") is not None:
        before = next((before for before, _ in speaking_turns(row["messages"], generate=True)), None)
        return Prompt(messages=before, tools=row.get("tools")) if before else None
    masked = row["loss_mask"]
    first = None if masked[:1] == [1] else first_supervised(masked)
    return None if first is None else Prompt(input_ids=row["input_ids"][:first])


def _held_out(ctx: StageContext) -> Iterator[dict[str, Any]]:
    return (row for row in read_jsonl(ctx.inputs["prepare"] / "conversations.jsonl") if row["split"] == "val")


def _from_dataset(ctx: StageContext, folder: Path) -> Iterator[dict[str, Any]]:
    data = ctx.spec.data.model_copy(update={"generate": True, "system_prompt": None, "on_control_tokens": "allow"})
    reader = RowReader(data, (), None)
    for raw in read_rows(folder, read_record(folder)):
        try:
            yield reader.read(raw).content
        except RowRejected:
            continue
