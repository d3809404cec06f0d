"""prepare: reads the dataset, normalises conversations, refuses rows with line and reason, splits by conversation.

In: `dataset` (a dataset's folder). Out: `conversations.jsonl` (one `Prepared` a line), `rejects.jsonl` (`source`,
`line`, `reason`, `message`). Equal inputs give equal bytes. What is known of the rows lies in files of `work`: a large
dataset needs no more memory than a small one.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from services.worker.data.ready_checks import check_ready_rows
from services.worker.stage_context import StageContext
from shared.data.control_tokens import added_tokens
from shared.data.dataset_record import read_record, source_names
from shared.data.files import read_rows
from shared.data.mixture import MIN_CONVERSATIONS, choose_rows, chosen, open_index
from shared.data.refusal import RowRejected
from shared.data.row_index import RowIndex
from shared.data.row_reader import RowReader
from shared.errors import UserError
from shared.schemas.accounting import Accounting
from shared.schemas.registry import DatasetRecord
from shared.verifier_config import read_verifier_config

FIRST_REJECTS_SHOWN = 5
REPORT_EVERY = 1000


def run(ctx: StageContext) -> dict[str, Any]:
    """Prepare the job's dataset.

    Returns:
        Counts that add up: `rows` = `kept` + all of `rejected`; by side and by source; and what was mended.

    Raises:
        UserError: a file is damaged, a source is not represented, or fewer than two conversations are left.
    """
    data, record = ctx.spec.data, read_record(ctx.inputs["dataset"])
    sources = source_names(record)
    if record.kind == "rows":
        check_ready_rows(ctx.inputs["dataset"], record, ctx.spec)
    with open_index(ctx.work / "rows.sqlite", record, data) as index:
        rows, mended = _read_all(ctx, record, index)
        _require_conversations(index)
        choose_rows(index, ctx.inputs["dataset"], record, data)
        counts = _write_conversations(ctx, index)
        _write_rejects(ctx.out / "rejects.jsonl", index)
        rejected = index.reasons()
    for leftover in (_accepted(ctx), ctx.work / "rows.sqlite"):
        leftover.unlink()
    ctx.report.progress(rows, rows, "rows")
    kept = counts.total()
    books = Accounting(unit="rows", taken=rows, kept=kept, rejected=rejected)
    return {
        "rows": rows,
        "kept": kept,
        "train": sum(count for (_, split), count in counts.items() if split == "train"),
        "val": sum(count for (_, split), count in counts.items() if split == "val"),
        "sources": {name: {split: counts[name, split] for split in ("train", "val")} for name in sources},
        "rejected": rejected,
        "mended": dict(sorted(mended.items())),
        "accounting": books.model_dump(),
    }


def _read_all(ctx: StageContext, record: DatasetRecord, index: RowIndex) -> tuple[int, Counter[str]]:
    """Judge every row; return rows read, and what was mended.

    The text of accepted rows goes to `work/accepted.jsonl`, less its first brace: id and split are written before it.
    """
    verifier = Path(ctx.spec.verifier.model)
    tokens = added_tokens(verifier).values()
    reader = RowReader(ctx.spec.data, tokens, read_verifier_config(verifier).vocab_size)
    rows, mended = 0, Counter[str]()
    with _accepted(ctx).open("wb") as accepted:
        for rows, raw in enumerate(read_rows(ctx.inputs["dataset"], record), 1):
            try:
                row = reader.read(raw)
                index.add(row)
            except RowRejected as refusal:
                index.reject(raw.source, raw.line, refusal)
            else:
                mended.update(row.notes)
                accepted.write(row.text.removeprefix("{").encode() + b"\n")
            if rows % REPORT_EVERY == 0:
                ctx.report.progress(rows, max(rows + 1, record.rows), "rows")
    return rows, mended


def _accepted(ctx: StageContext) -> Path:
    return ctx.work / "accepted.jsonl"


def _write_conversations(ctx: StageContext, index: RowIndex) -> Counter[tuple[str, str]]:
    """Put the rows that are taken together, in their order; return how many by source and side."""
    counts = Counter[tuple[str, str]]()
    with _accepted(ctx).open("rb") as accepted, (ctx.out / "conversations.jsonl").open("wb") as file:
        for (source, line, row_id, taken, held_out), content in zip(chosen(index), accepted, strict=True):
            if taken:
                split = "val" if held_out else "train"
                counts[source, split] += 1
                head = json.dumps({"id": row_id, "line": line, "source": source, "split": split}, ensure_ascii=False)
                file.write(head.removesuffix("}").encode() + b", " + content)
    return counts


def _write_rejects(path: Path, index: RowIndex) -> None:
    with path.open("w", encoding="utf-8") as file:
        for reject in index.rejects():
            file.write(json.dumps(vars(reject), ensure_ascii=True) + "\n")


def _require_conversations(index: RowIndex) -> None:
    usable = index.taken().total()
    if usable >= MIN_CONVERSATIONS:
        return
    first = [_place(index, item.source, item.line) + item.message for item in index.rejects(FIRST_REJECTS_SHOWN)]
    counts = ", ".join(f"{count} {reason}" for reason, count in index.reasons().items())
    raise UserError(
        f"{usable} usable conversations are too few"
        + (f", rejected: {counts}; first: {'; '.join(first)}" if first else ""),
        where="dataset",
        hint=f"at least {MIN_CONVERSATIONS} different ones are needed, one to train on and one to hold out",
    )


def _place(index: RowIndex, source: str, line: int) -> str:
    return f"line {line} " if len(index.sources) == 1 else f"{source} line {line} "
