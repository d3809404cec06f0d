"""prepare: reads the dataset, normalises conversations, refuses rows with line and reason, splits by conversation.

In: `dataset` (a dataset's folder). Out: `conversations.jsonl` (one a line: `id`, `line`, `split`, `messages`, `tools`),
`rejects.jsonl` (`line`, `reason`, `message`). Equal inputs give equal bytes.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from services.worker.stage_context import StageContext
from shared.data.control_tokens import added_tokens
from shared.data.conversations import (
    Conversation,
    RowRejected,
    check_control_tokens,
    parse_row,
    split_ids,
)
from shared.data.files import read_record, read_rows
from shared.errors import UserError

FIRST_REJECTS_SHOWN = 5
MIN_CONVERSATIONS = 2
REPORT_EVERY = 1000


def run(ctx: StageContext) -> dict[str, Any]:
    """Prepare the job's dataset.

    Returns:
        Counts that add up: `rows` = `kept` + all of `rejected`, and what was mended.

    Raises:
        UserError: fewer than two conversations are left.
    """
    data = ctx.spec.data
    draft, counts, rejected = ctx.work / "conversations.jsonl", Counter[str](), Counter[str]()
    record = read_record(ctx.inputs["dataset"])
    ids: list[str] = []
    with draft.open("w", encoding="utf-8") as kept, (ctx.out / "rejects.jsonl").open("w", encoding="utf-8") as rejects:
        reader = ConversationReader(ctx)
        for raw in read_rows(ctx.inputs["dataset"], record):
            line, text = raw.line, raw.value
            counts["rows"] += 1
            try:
                identity, conversation = reader.read(line, text)
            except RowRejected as refusal:
                rejected[refusal.reason] += 1
                row = {"line": line, "reason": refusal.reason, "message": refusal.message}
                rejects.write(json.dumps(row, ensure_ascii=True) + "\n")
                continue
            ids.append(identity)
            counts.update(conversation.notes)
            row = {"id": identity, "line": line, "messages": conversation.messages, "tools": conversation.tools}
            kept.write(json.dumps(row, ensure_ascii=False) + "\n")
            if counts["rows"] % REPORT_EVERY == 0:
                ctx.report.progress(counts["rows"], max(counts["rows"], record.rows), "rows")
    _require_conversations(ids, rejected, ctx.out / "rejects.jsonl")
    held_out = split_ids(ids, data.val_ratio, data.seed)
    _write_split(draft, ctx.out / "conversations.jsonl", held_out)
    ctx.report.progress(counts["rows"], counts["rows"], "rows")
    return {
        "rows": counts.pop("rows"),
        "kept": len(ids),
        "train": len(ids) - len(held_out),
        "val": len(held_out),
        "rejected": dict(sorted(rejected.items())),
        "mended": dict(sorted(counts.items())),
    }


class ConversationReader:
    """Reads rows by the job's rules; remembers prompts to find equal ones, and stops taking rows at the limit."""

    def __init__(self, ctx: StageContext) -> None:
        self.data = ctx.spec.data
        self.tokens = sorted(added_tokens(Path(ctx.spec.verifier.model)).values())
        self.seen: Counter[str] = Counter()
        self.taken = 0

    def read(self, line: int, text: str) -> tuple[str, Conversation]:
        """Return a row's id and conversation.

        Raises:
            RowRejected
        """
        conversation = parse_row(line, text, self.data.system_prompt)
        if self.data.on_control_tokens == "reject":
            check_control_tokens(conversation, self.tokens)
        identity = conversation.identity(with_answers=not self.data.generate)
        if self.seen[identity] and self.data.deduplicate:
            raise RowRejected("duplicate", "an earlier row has the same conversation")
        if self.data.limit is not None and self.taken >= self.data.limit:
            raise RowRejected("over_limit", f"data.limit is {self.data.limit}")
        self.seen[identity] += 1
        self.taken += 1
        number = self.seen[identity]
        return (identity if number == 1 else f"{identity}-{number}"), conversation


def _require_conversations(ids: list[str], rejected: Counter[str], rejects: Path) -> None:
    if len(ids) >= MIN_CONVERSATIONS:
        return
    with rejects.open(encoding="utf-8") as file:
        first = [json.loads(line) for _, line in zip(range(FIRST_REJECTS_SHOWN), file, strict=False)]
    shown = "; ".join(f"line {item['line']} {item['message']}" for item in first)
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(rejected.items()))
    raise UserError(
        f"{len(ids)} usable conversations are too few" + (f", rejected: {counts}; first: {shown}" if first else ""),
        where="dataset",
        hint=f"at least {MIN_CONVERSATIONS} different ones are needed, one to train on and one to hold out",
    )


def _write_split(draft: Path, target: Path, held_out: set[str]) -> None:
    with draft.open(encoding="utf-8") as source, target.open("w", encoding="utf-8") as file:
        for line in source:
            row = json.loads(line)
            row["split"] = "val" if row["id"] in held_out else "train"
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
