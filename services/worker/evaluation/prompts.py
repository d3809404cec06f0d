"""The prompts of a suite: what the verifier is asked while acceptance is counted.

In: the job's held-out conversations (`prepare`), or a dataset of its own. Out: for each the messages up to the first
place where the assistant speaks, or, where a row came as token ids, the ids before the first supervised one; and why
the other rows are not asked.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.worker.data.rows import read_jsonl
from services.worker.stage_context import StageContext
from services.worker.training.row_index import first_supervised
from shared.data.dataset_record import read_record
from shared.data.files import read_rows
from shared.data.refusal import RowRejected
from shared.data.row_reader import RowReader
from shared.data.turns import speaking_turns
from shared.errors import UserError
from shared.schemas.accounting import Accounting
from shared.schemas.spec import SuiteSpec


@dataclass(frozen=True)
class Prompt:
    """Either `messages`, with the tools they may call, or `input_ids`."""

    messages: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    input_ids: list[int] | None = None


@dataclass
class Suite:
    """Prompts that are asked beside every draft, and what became of the rows that gave none.

    Attributes:
        rows: how many rows the suite has.
        rejected: rows without a prompt, by reason.
        refused: numbers of prompts that the verifier would not answer beside some draft, with the reason.
    """

    name: str
    prompts: list[Prompt]
    rows: int
    rejected: Counter[str]
    refused: dict[int, str] = field(default_factory=dict)


def read_suite(ctx: StageContext, suite: SuiteSpec) -> Suite:
    """Collect the first `evaluate.max_prompts` prompts of a suite: of its own dataset, or of what the job held out.

    Raises:
        UserError: there is none.
    """
    rows, source = _held_out(ctx) if suite.dataset is None else _from_dataset(ctx, ctx.inputs[f"suite:{suite.name}"])
    prompts: list[Prompt] = []
    rejected: Counter[str] = Counter()
    for row in source:
        if isinstance(row, RowRejected):
            rejected[row.reason] += 1
        elif (prompt := first_prompt(row)) is None:
            rejected["no_prompt"] += 1
        else:
            prompts.append(prompt)
        if len(prompts) == ctx.spec.evaluate.max_prompts:
            break
    if not prompts:
        raise UserError(f"the suite {suite.name} has no usable prompt", where="/evaluate/suites")
    if left := rows - len(prompts) - rejected.total():
        rejected["over_max_prompts"] = left
    return Suite(suite.name, prompts, rows, rejected)


def suite_books(suites: Sequence[Suite]) -> Accounting:
    """The books over all suites; a prompt is kept when it was answered beside every draft."""
    rejected: Counter[str] = Counter()
    for suite in suites:
        rejected.update(suite.rejected)
        rejected.update(suite.refused.values())
    return Accounting(
        unit="prompts",
        taken=sum(suite.rows for suite in suites),
        kept=sum(len(suite.prompts) - len(suite.refused) for suite in suites),
        rejected=dict(sorted(rejected.items())),
    )


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


def _held_out(ctx: StageContext) -> tuple[int, Iterator[dict[str, Any]]]:
    file = ctx.inputs["prepare"] / "conversations.jsonl"
    count = sum(row["split"] == "val" for row in read_jsonl(file))
    return count, (row for row in read_jsonl(file) if row["split"] == "val")


def _from_dataset(ctx: StageContext, folder: Path) -> tuple[int, Iterator[dict[str, Any] | RowRejected]]:
    data = ctx.spec.data.model_copy(update={"generate": True, "system_prompt": None, "on_control_tokens": "allow"})
    reader, record = RowReader(data, (), None), read_record(folder)

    def rows() -> Iterator[dict[str, Any] | RowRejected]:
        for raw in read_rows(folder, record):
            try:
                yield reader.read(raw).content
            except RowRejected as rejection:
                yield rejection

    return record.rows, rows()
