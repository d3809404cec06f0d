"""generate: has the verifier answer; stores the exact ids it read and wrote, and with inline capture its hidden states.

In: `prepare`. Out: shards `rows_A-B/` (conversations A to B) with `rows.jsonl`, captured states `ROW.safetensors` and
`manifest.json`; and `rejects.jsonl`, a line for every turn that gave no row. Conversations are read as a stream; rows
that an earlier attempt, or another run of equal content, has made are taken over.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.worker.data.concurrency import for_each
from services.worker.data.earlier_rows import EarlierRows
from services.worker.data.exchange import request_tag, require_layers, require_writable, sweep_attempt
from services.worker.data.request_times import RequestTimes
from services.worker.data.rows import RowFolder
from services.worker.data.shards import ShardWriter
from services.worker.data.token_rows import take_ready_states, token_row
from services.worker.data.turns import Refusal, TurnWriter, Written
from services.worker.data.verifier_client import VerifierClient
from services.worker.stage_context import StageContext
from shared.data.control_tokens import end_token_ids
from shared.data.refusal import RowRejected
from shared.data.rendering import TurnRenderer
from shared.errors import UserError, VerifierError
from shared.schemas.accounting import Accounting
from shared.schemas.prepared import Prepared
from shared.verifier_config import capture_layer_ids, read_verifier_config

FIRST_SHOWN = 3
VERIFIERS_FAULTS = ("verifier_failed", "bad_answer", "no_choices", "no_token_ids")


def run(ctx: StageContext) -> dict[str, Any]:
    """Generate (or, with `data.generate` off, read) the answers of all prepared conversations.

    Returns:
        Counts; `accounting` is in turns: those of the dataset = rows + rejected.

    Raises:
        VerifierError: the verifier is down, or more than `data.max_bad_fraction` of the turns failed.
        UserError: it serves another model, or no row is left on one side of the split.
        ArtifactStoreError: the exchange folder cannot be used.
    """
    tag = request_tag(ctx.job_id, ctx.token)
    try:
        return asyncio.run(Generation(ctx, tag).run())
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


@dataclass
class Tally:
    """What was counted so far; turns = rows + rejected."""

    conversations: int = 0
    finished: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    first_rejects: list[str] = field(default_factory=list)

    @property
    def turns(self) -> int:
        return self.splits.total() + self.rejected.total()

    def add(self, conversation: Prepared, written: Written) -> None:
        """Count what became of one conversation."""
        self.conversations += 1
        self.finished += not written.refusals
        self.counts["taken_over"] += written.taken_over
        for row in written.rows:
            self.splits[row.split] += 1
            self.finish_reasons[row.finish_reason] += 1
            self.counts["clipped"] += row.clipped
            self.counts["with_states"] += row.has_states
            self.counts["supervised"] += row.supervised
            self.counts["answer_tokens"] += row.answer_tokens
            self.counts["prompt_tokens"] += len(row.input_ids) - sum(row.loss_mask)
        for refusal in written.refusals:
            self.rejected[refusal.reason] += 1
            if len(self.first_rejects) < FIRST_SHOWN:
                self.first_rejects.append(f"line {conversation.line}: {refusal.message}")

    def summary(self) -> dict[str, Any]:
        """The stage's summary."""
        rows = self.splits.total()
        rejected = dict(sorted(self.rejected.items()))
        books = Accounting(unit="turns", taken=self.turns, kept=rows, rejected=rejected)
        names = ("clipped", "with_states", "taken_over", "prompt_tokens", "answer_tokens")
        return {
            "conversations": self.conversations,
            "finished": self.finished,
            "rejected": rejected,
            "rows": rows,
            "train": self.splits["train"],
            "val": self.splits["val"],
            **{name: self.counts[name] for name in names},
            "finish_reasons": dict(sorted(self.finish_reasons.items())),
            "accounting": books.model_dump(),
        }


class Generation:
    """One run of the stage. The verifier is first asked when a conversation needs it: token ids do not."""

    def __init__(self, ctx: StageContext, tag: str) -> None:
        self.ctx, self.tag, self.tally = ctx, tag, Tally()
        self.rows = RowFolder(ctx.work / "rows")
        self.source = ctx.inputs["prepare"] / "conversations.jsonl"
        with self.source.open("rb") as file:
            self.total = sum(1 for _ in file)
        self.shards = ShardWriter(ctx.out, ctx.work, self.rows, ctx.spec.data.shard_rows, self.total)
        self._starting = asyncio.Lock()
        self._writer: TurnWriter | None = None

    async def run(self) -> dict[str, Any]:
        """Make all rows; returns the stage's summary."""
        async with AsyncExitStack() as self._stack:
            await for_each(enumerate(self._conversations()), self.ctx.spec.data.concurrency, self._work)
        self.shards.finish()
        self._judge()
        return self.tally.summary()

    def _conversations(self) -> Iterator[Prepared]:
        with self.source.open("rb") as file:
            for line in file:
                yield Prepared.model_validate_json(line)

    async def _work(self, numbered: tuple[int, Prepared]) -> None:
        index, conversation = numbered
        if conversation.input_ids is not None:
            written = self._from_ids(conversation)
        else:
            written = await (await self._turn_writer()).write(conversation)
        self.tally.add(conversation, written)
        for refusal in written.refusals:
            if refusal.reason == "verifier_failed":
                self.ctx.report.warn(f"line {conversation.line}: {refusal.message}")
        await self.shards.add(index, conversation, written)
        done, tokens = self.tally.conversations, self.tally.counts["answer_tokens"]
        self.ctx.report.progress(done, self.total, "conversations", tokens=tokens)

    def _from_ids(self, conversation: Prepared) -> Written:
        try:
            row = token_row(conversation, self.ctx.spec.data.max_seq_len)
            if conversation.states is not None:
                folder = self.ctx.inputs.get("dataset", self.ctx.inputs["prepare"])
                take_ready_states(row, conversation.states, folder, self.rows)
        except RowRejected as refusal:
            return Written(refusals=[Refusal(0, refusal.reason, refusal.message)])
        return Written(rows=[row])

    async def _turn_writer(self) -> TurnWriter:
        async with self._starting:
            if self._writer is None:
                self._writer = await self._start()
        return self._writer

    async def _start(self) -> TurnWriter:
        ctx, data = self.ctx, self.ctx.spec.data
        if ctx.endpoint is None:
            raise UserError("generate needs a verifier endpoint", where="/verifier")
        require_writable(ctx.exchange)
        times = RequestTimes(ctx.report.figures)
        client = VerifierClient(ctx.endpoint, ctx.served_model, ctx.exchange, data.concurrency, times=times)
        await self._stack.enter_async_context(client)
        client.model = await client.check_model()
        require_layers(ctx.exchange, client.model, wanted_layers(ctx))
        renderer = TurnRenderer(client.tokenize, end_token_ids(Path(ctx.spec.verifier.model)))
        earlier = EarlierRows([*ctx.previous, *ctx.siblings])
        capture = wants_inline_capture(ctx)
        return TurnWriter(client, renderer, self.rows, earlier, data, tag=self.tag, capture=capture)

    def _judge(self) -> None:
        tally, first = self.tally, "; ".join(self.tally.first_rejects)
        failed = sum(tally.rejected[reason] for reason in VERIFIERS_FAULTS)
        if failed > self.ctx.spec.data.max_bad_fraction * tally.turns:
            raise VerifierError(
                f"{failed} of {tally.turns} turns failed: {first}",
                where=self.ctx.endpoint or "",
                hint="more than data.max_bad_fraction; the rows made so far are kept",
            )
        if not tally.splits.total():
            raise UserError(f"all {tally.turns} turns were refused: {first}", where="dataset")
        if not tally.splits["train"] or not tally.splits["val"]:
            raise UserError(
                f"{tally.splits['train']} rows to train on and {tally.splits['val']} held out are left",
                where="dataset",
                hint="both are needed: give more prompts, or look into the rejects",
            )
