"""capture: completes and checks hidden states, then lays rows out as the trainer reads them.

In: `prepare`, `generate`. Out: `dataset/` in speculators' own layout: a saved `datasets` folder (`input_ids`,
`loss_mask`, `seq_len`), `hidden_states/hs_I.safetensors`, training rows first, with `rows.jsonl` and `meta.json`; and
`excluded.jsonl`. Rows without good states are asked for again by a prefill, then excluded by name.
"""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from datasets import Dataset

from services.worker.data.concurrency import for_each
from services.worker.data.exchange import BadStates, request_tag, require_layers, sweep_attempt, take_states
from services.worker.data.hidden_states import check_states, rewrite_states
from services.worker.data.rows import Row, RowFolder, read_shards
from services.worker.data.verifier_client import RowRefused, VerifierClient
from services.worker.stage_context import StageContext
from services.worker.training.row_index import first_supervised
from shared.artifact_store import link_or_copy
from shared.errors import UserError, VerifierError
from shared.verifier_config import capture_layer_ids, read_verifier_config

FIRST_SHOWN = 3


def run(ctx: StageContext) -> dict[str, Any]:
    """Complete the hidden states of all generated rows.

    Returns:
        Counts: `rows` = `kept` + `excluded`; how many states came with the answer and how many by prefill.

    Raises:
        VerifierError: the verifier is down, or more than `data.max_bad_fraction` of the rows stay without good states.
        UserError: one side of the split is empty.
    """
    tag = request_tag(ctx.job_id, ctx.token)
    try:
        return asyncio.run(StateCollector(ctx, tag).collect())
    finally:
        sweep_attempt(ctx.exchange, tag)


class StateCollector:
    """Gathers one good file of states for every row."""

    def __init__(self, ctx: StageContext, tag: str) -> None:
        self.ctx, self.tag = ctx, tag
        config = read_verifier_config(Path(ctx.spec.verifier.model))
        self.layer_ids = capture_layer_ids(ctx.spec.capture.layer_ids, config.num_hidden_layers)
        self.hidden_size = config.hidden_size
        self.rows = RowFolder(ctx.work / "rows")
        self.rows.take_over(path / "rows" for path in ctx.previous)
        self.dtypes: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()
        self.excluded: list[dict[str, Any]] = []

    async def collect(self) -> dict[str, Any]:
        """Collect, check and lay out; returns the stage's summary."""
        generated = list(read_shards(self.ctx.inputs["generate"]))
        missing = [row for row, states in generated if not self._take_inline(row, states)]
        done = len(generated) - len(missing)
        self.ctx.report.progress(done, len(generated), "rows")
        if missing:
            await self._prefill_all(missing, done, len(generated))
        bad = {item["row"] for item in self.excluded}
        kept = [row for row, _ in generated if row.id not in bad]
        self._write_excluded(len(generated))
        _require_both_splits(kept)
        meta = self._lay_out([row for row in kept if row.split == "train"], [row for row in kept if row.split == "val"])
        return {
            "rows": len(generated),
            "kept": len(kept),
            "excluded": dict(Counter(item["reason"] for item in self.excluded)),
            "inline": self.sources["inline"],
            "prefill": self.sources["prefill"],
            **meta,
        }

    def _take_inline(self, row: Row, states: Path) -> bool:
        target = self.rows.states_path(row.id)
        prefilled = self.rows.has(row.id)
        if not prefilled and row.has_states and states.is_file():
            link_or_copy(states, target)
        if not target.is_file():
            return False
        try:
            self._finish(row, "prefill" if prefilled else "inline")
        except BadStates as error:
            target.unlink()
            self.ctx.report.warn(f"row {row.id}: {error}; asked for again")
            return False
        return True

    def _finish(self, row: Row, source: str) -> None:
        path = self.rows.states_path(row.id)
        rewrite_states(path, len(row.input_ids), self.ctx.spec.capture.dtype)
        dtype = check_states(path, row.input_ids, len(self.layer_ids), self.hidden_size)
        self.dtypes[dtype] += 1
        self.sources[source] += 1

    async def _prefill_all(self, missing: list[Row], done: int, total: int) -> None:
        ctx = self.ctx
        if ctx.endpoint is None:
            raise UserError(f"{len(missing)} rows have no hidden states and there is no verifier", where="/verifier")
        finished = done
        async with VerifierClient(ctx.endpoint, ctx.served_model, ctx.exchange, ctx.spec.data.concurrency) as client:
            client.model = await client.check_model()
            require_layers(ctx.exchange, client.model, self.layer_ids)

            async def work(row: Row) -> None:
                nonlocal finished
                await self._prefill(client, row)
                finished += 1
                ctx.report.progress(finished, total, "rows")

            await for_each(missing, min(ctx.spec.data.concurrency, len(missing)), work)

    async def _prefill(self, client: VerifierClient, row: Row) -> None:
        target = self.rows.states_path(row.id)
        for attempt in (1, 2):
            try:
                request_id = f"{self.tag}-{row.id}-{attempt}"
                states = await client.prefill(row.input_ids, request_id=request_id)
                await asyncio.to_thread(take_states, states, target)
                self._finish(row, "prefill")
                self.rows.write(row)  # a later attempt need not ask again
                return
            except BadStates as error:
                target.unlink(missing_ok=True)
                reason, message = "bad_states", str(error)
            except RowRefused as refusal:
                reason, message = refusal.reason, refusal.message
                break
        self.excluded.append({"row": row.id, "line": row.line, "reason": reason, "message": message})

    def _write_excluded(self, total: int) -> None:
        with (self.ctx.out / "excluded.jsonl").open("w", encoding="utf-8") as file:
            for item in sorted(self.excluded, key=lambda item: (item["line"], item["row"])):
                file.write(json.dumps(item, ensure_ascii=False) + "\n")
        if len(self.excluded) > self.ctx.spec.data.max_bad_fraction * total:
            first = "; ".join(f"row {item['row']}: {item['message']}" for item in self.excluded[:FIRST_SHOWN])
            raise VerifierError(
                f"{len(self.excluded)} of {total} rows have no good hidden states: {first}",
                where=self.ctx.endpoint or "",
                hint="more than data.max_bad_fraction; the good ones are kept",
            )

    def _lay_out(self, train: list[Row], val: list[Row]) -> dict[str, Any]:
        ordered = [*train, *val]
        folder = self.ctx.out / "dataset"
        (folder / "hidden_states").mkdir(parents=True)
        lengths = [len(row.input_ids) for row in ordered]
        dataset = Dataset.from_dict(
            {
                "input_ids": [row.input_ids for row in ordered],
                "loss_mask": [row.loss_mask for row in ordered],
                "seq_len": lengths,
            }
        )
        dataset.set_format("torch", columns=["input_ids", "loss_mask", "seq_len"])
        dataset.save_to_disk(folder)
        with (folder / "rows.jsonl").open("w", encoding="utf-8") as index:
            for number, row in enumerate(ordered):
                link_or_copy(self.rows.states_path(row.id), folder / "hidden_states" / f"hs_{number}.safetensors")
                index.write(json.dumps(_index_entry(number, row)) + "\n")
        meta = {
            "num_train": len(train),
            "num_val": len(val),
            "layer_ids": self.layer_ids,
            "hidden_size": self.hidden_size,
            "dtype": self.dtypes.most_common(1)[0][0],
            "tokens": sum(lengths),
            "supervised_tokens": sum(len(row.answer_ids) - 1 for row in ordered),
            "supervised_train_tokens": sum(len(row.answer_ids) - 1 for row in train),
        }
        (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        return meta


def _index_entry(number: int, row: Row) -> dict[str, Any]:
    return {
        "index": number,
        "row_id": row.id,
        "conversation": row.conversation,
        "split": row.split,
        "seq_len": len(row.input_ids),
        "supervised": len(row.answer_ids) - 1,
        "first_supervised": first_supervised(row.loss_mask),
        "last_id": row.answer_ids[-1],
        "finish_reason": row.finish_reason,
    }


def _require_both_splits(rows: list[Row]) -> None:
    splits = Counter(row.split for row in rows)
    if not splits["train"] or not splits["val"]:
        raise UserError(
            f"{splits['train']} rows to train on and {splits['val']} held out are left",
            where="dataset",
            hint="both are needed: give more prompts, or look into the excluded rows",
        )
