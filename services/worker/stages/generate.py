"""generate: has the verifier answer; stores the exact ids it read and wrote, and with inline capture its hidden states.

In: `prepare`. Out: shards `rows_A-B/` (conversations A to B) with `rows.jsonl`, captured states `ROW.safetensors` and
`manifest.json`; and `rejects.jsonl`. Rows that an earlier attempt finished are taken over.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.worker.data.concurrency import for_each
from services.worker.data.exchange import request_tag, require_layers, sweep_attempt
from services.worker.data.rows import Row, RowFolder, read_jsonl
from services.worker.data.turns import TurnWriter
from services.worker.data.verifier_client import RowRefused, VerifierClient
from services.worker.stage_context import StageContext
from shared.artifact_store import file_sha256, link_or_copy
from shared.errors import UserError, VerifierError
from shared.verifier_config import capture_layer_ids, read_verifier_config

FIRST_SHOWN = 3


@dataclass
class Tally:
    """Counts of a running stage; conversations in = finished + rejected."""

    total: int
    done: int = 0
    tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    rejects: list[dict[str, Any]] = field(default_factory=list)


def run(ctx: StageContext) -> dict[str, Any]:
    """Generate (or, with `data.generate` off, read) the answers of all prepared conversations.

    Returns:
        Counts: `conversations` = `finished` + `rejected`; `rows`, tokens, finish reasons, rows with states.

    Raises:
        VerifierError: the verifier is down, or more than `data.max_bad_fraction` of the conversations failed.
        UserError: it serves another model, or no conversation is left on one side of the split.
    """
    tag = request_tag(ctx.job_id, ctx.token)
    try:
        return asyncio.run(_generate(ctx, tag))
    finally:
        sweep_attempt(ctx.exchange, tag)


def wants_inline_capture(ctx: StageContext) -> bool:
    """Whether answers and states come in one request: `auto` takes it where it is the cheaper way.

    On CPU it is. On CUDA, capture costs vLLM its full decode graphs, and two passes take less time than one.
    """
    mode = ctx.spec.capture.mode
    return ctx.spec.data.generate and (mode == "inline" or (mode == "auto" and not ctx.gpu_verifier))


def wanted_layers(ctx: StageContext) -> list[int]:
    """The layers whose states the job needs, the final one included."""
    config = read_verifier_config(Path(ctx.spec.verifier.model))
    return capture_layer_ids(ctx.spec.capture.layer_ids, config.num_hidden_layers)


async def _generate(ctx: StageContext, tag: str) -> dict[str, Any]:
    conversations = list(read_jsonl(ctx.inputs["prepare"] / "conversations.jsonl"))
    rows = RowFolder(ctx.work / "rows")
    taken_over = rows.take_over(path / "rows" for path in ctx.previous)
    tally = Tally(total=len(conversations))
    if ctx.endpoint is None:
        raise UserError("generate needs a verifier endpoint", where="/verifier")
    size = ctx.spec.data.shard_rows
    kept: list[Row] = []
    async with VerifierClient(ctx.endpoint, ctx.served_model, ctx.exchange, ctx.spec.data.concurrency) as client:
        client.model = await client.check_model()
        require_layers(ctx.exchange, client.model, wanted_layers(ctx))
        writer = TurnWriter(client, rows, ctx.spec.data, tag, wants_inline_capture(ctx))
        for start in range(0, len(conversations), size):
            part = conversations[start : start + size]
            made = await _write_all(ctx, writer, part, tally)
            _write_shard(ctx.out / f"rows_{start}-{start + len(part)}", made, rows)
            kept.extend(made)
    _write_rejects(ctx, tally)
    return _summary(kept, tally, taken_over)


async def _write_all(
    ctx: StageContext, writer: TurnWriter, conversations: list[dict[str, Any]], tally: Tally
) -> list[Row]:
    made: dict[str, list[Row]] = {}

    async def work(conversation: dict[str, Any]) -> None:
        try:
            made[conversation["id"]] = await writer.write(conversation)
            _count_rows(tally, made[conversation["id"]])
        except RowRefused as refusal:
            _count_refusal(ctx, tally, conversation, refusal)
        tally.done += 1
        ctx.report.progress(tally.done, tally.total, "conversations", tokens=tally.tokens)

    await for_each(conversations, min(ctx.spec.data.concurrency, len(conversations)), work)
    return [row for conversation in conversations for row in made.get(conversation["id"], [])]


def _count_rows(tally: Tally, rows: list[Row]) -> None:
    for row in rows:
        tally.finish_reasons[row.finish_reason] += 1
        tally.tokens += len(row.answer_ids)


def _count_refusal(ctx: StageContext, tally: Tally, conversation: dict[str, Any], refusal: RowRefused) -> None:
    tally.rejected[refusal.reason] += 1
    tally.rejects.append({"line": conversation["line"], "reason": refusal.reason, "message": refusal.message})
    if refusal.reason == "verifier_failed":
        ctx.report.warn(f"line {conversation['line']}: {refusal.message}")


def _write_shard(folder: Path, rows: list[Row], source: RowFolder) -> None:
    folder.mkdir()
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(row.model_dump_json() + "\n")
    for row in rows:
        if row.has_states:
            link_or_copy(source.states_path(row.id), folder / f"{row.id}.safetensors")
    hashes = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    (folder / "manifest.json").write_text(json.dumps({"rows": len(rows), "sha256": hashes}, indent=1), encoding="utf-8")


def _write_rejects(ctx: StageContext, tally: Tally) -> None:
    rejects = sorted(tally.rejects, key=lambda item: item["line"])
    with (ctx.out / "rejects.jsonl").open("w", encoding="utf-8") as file:
        for item in rejects:
            file.write(json.dumps(item, ensure_ascii=False) + "\n")
    failed = tally.rejected["verifier_failed"] + tally.rejected["bad_answer"] + tally.rejected["no_choices"]
    first = "; ".join(f"line {item['line']}: {item['message']}" for item in rejects[:FIRST_SHOWN])
    if failed > ctx.spec.data.max_bad_fraction * tally.total:
        raise VerifierError(
            f"{failed} of {tally.total} conversations failed: {first}",
            where=ctx.endpoint or "",
            hint="more than data.max_bad_fraction; the rows made so far are kept",
        )
    if len(rejects) == tally.total:
        raise UserError(f"all {tally.total} conversations were refused: {first}", where="dataset")


def _summary(rows: list[Row], tally: Tally, taken_over: int) -> dict[str, Any]:
    splits = Counter(row.split for row in rows)
    if not splits["train"] or not splits["val"]:
        raise UserError(
            f"{splits['train']} rows to train on and {splits['val']} held out are left",
            where="dataset",
            hint="both are needed: give more prompts, or look into the rejects",
        )
    return {
        "conversations": tally.total,
        "finished": tally.total - tally.rejected.total(),
        "rejected": dict(sorted(tally.rejected.items())),
        "rows": len(rows),
        "train": splits["train"],
        "val": splits["val"],
        "clipped": sum(row.clipped for row in rows),
        "with_states": sum(row.has_states for row in rows),
        "taken_over": taken_over,
        "prompt_tokens": sum(len(row.prompt_ids) for row in rows),
        "answer_tokens": sum(len(row.answer_ids) for row in rows),
        "finish_reasons": dict(sorted(tally.finish_reasons.items())),
    }
