"""capture: completes and checks hidden states, then lays rows out as the trainer reads them.

In: `prepare`, `generate`. Out: `dataset/` in speculators' own layout (see `data/dataset_layout.py`), training rows
first, with `meta.json`; and `excluded.jsonl`. Rows without good states are asked for again by a prefill, then excluded
by name. Rows are read as a stream, once for each of the three steps: what is there, what is missing, what is laid out.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.worker.data.concurrency import for_each
from services.worker.data.dataset_layout import DatasetWriter
from services.worker.data.earlier_states import EarlierStates
from services.worker.data.exchange import (
    BadStates,
    request_tag,
    require_layers,
    require_writable,
    sweep_attempt,
    take_states,
)
from services.worker.data.hidden_states import settle_states, stored_dtype
from services.worker.data.request_times import RequestTimes
from services.worker.data.rows import Row, RowFolder, read_shards
from services.worker.data.verifier_client import RowRefused, VerifierClient
from services.worker.stage_context import StageContext
from shared.artifact_store import link_or_copy
from shared.errors import UserError, VerifierError
from shared.schemas.accounting import Accounting
from shared.verifier_config import capture_layer_ids, read_verifier_config

FIRST_SHOWN = 3
ATTEMPTS = 2


def run(ctx: StageContext) -> dict[str, Any]:
    """Complete the hidden states of all generated rows.

    Returns:
        Counts: `rows` = `kept` + `excluded`; how many states came with the answer and how many by prefill.

    Raises:
        VerifierError: the verifier is down, or more than `data.max_bad_fraction` of the rows stay without good states.
        UserError: too many ready-made rows are without good states, one side of the split is empty, or nothing is left
            to train on.
        ArtifactStoreError: the exchange folder cannot be used.
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
        self.earlier = EarlierStates([*ctx.previous, *ctx.siblings])
        self.total = self.done = 0
        self.missing: set[str] = set()
        self.faults: dict[str, str] = {}
        self.sources: Counter[str] = Counter()
        self.dtypes: Counter[str] = Counter()
        self.excluded: dict[str, dict[str, Any]] = {}

    async def collect(self) -> dict[str, Any]:
        """Collect, check and lay out; returns the stage's summary."""
        for row, states in self._generated():
            self.total += 1
            if not self._take(row, states):
                self.missing.add(row.id)
        self._demand_one_dtype(ask_again=True)
        self.done = self.total - len(self.missing)
        self.ctx.report.progress(self.done, self.total, "rows")
        if self.missing:
            await self._prefill_all()
            self._demand_one_dtype(ask_again=False)
        self._write_excluded()
        meta = self._lay_out()
        reasons = dict(sorted(Counter(item["reason"] for item in self.excluded.values()).items()))
        kept = self.total - len(self.excluded)
        return {
            "rows": self.total,
            "kept": kept,
            "excluded": reasons,
            "inline": self.sources["inline"],
            "prefill": self.sources["prefill"],
            "accounting": Accounting(unit="rows", taken=self.total, kept=kept, rejected=reasons).model_dump(),
            **meta,
        }

    def _generated(self) -> Iterator[tuple[Row, Path]]:
        return read_shards(self.ctx.inputs["generate"])

    def _take(self, row: Row, states: Path) -> bool:
        """Take states that are there: an earlier attempt's prefill, or the file that came with the row."""
        offers = [(path, "prefill") for path in self.earlier.find(row.id)]
        offers += [(states, "inline")] if row.has_states else []
        target = self.rows.states_path(row.id)
        for path, source in offers:
            try:
                link_or_copy(path, target)
                self._settle(row, source)
            except FileNotFoundError:
                continue
            except BadStates as error:
                target.unlink(missing_ok=True)
                self._doubt(row, str(error))
            else:
                return True
        return False

    def _settle(self, row: Row, source: str) -> None:
        path, form = self.rows.states_path(row.id), self.ctx.spec.capture.dtype
        self.dtypes[settle_states(path, row.input_ids, len(self.layer_ids), self.hidden_size, form)] += 1
        self.sources[source] += 1
        if source == "prefill":
            self.rows.write(row)  # a later attempt need not ask again

    def _doubt(self, row: Row, fault: str) -> None:
        self.faults[row.id] = fault
        remedy = "asked for again" if self.ctx.endpoint is not None else "left out"
        self.ctx.report.warn(f"row {row.id}: {fault}; {remedy}")

    def _demand_one_dtype(self, *, ask_again: bool) -> None:
        """States of another dtype than most have are not this verifier's: ask for them again, or exclude them."""
        if len(self.dtypes) < 2:
            return
        usual = self.dtypes.most_common(1)[0][0]
        for row, _ in self._generated():
            path = self.rows.states_path(row.id)
            if not path.is_file() or (found := stored_dtype(path)) == usual:
                continue
            self.dtypes[found] -= 1
            self.sources["prefill" if self.rows.has(row.id) else "inline"] -= 1
            self.rows.forget(row.id)
            message = f"hidden_states has dtype {found}, those of most rows {usual}"
            if ask_again:
                self.missing.add(row.id)
                self._doubt(row, message)
            else:
                self._exclude(row, "bad_states", message)

    async def _prefill_all(self) -> None:
        ctx = self.ctx
        if ctx.endpoint is None:  # a job of ready-made rows
            self._exclude_missing()
            return
        require_writable(ctx.exchange)
        most, times = ctx.spec.data.concurrency, RequestTimes(ctx.report.figures)
        async with VerifierClient(ctx.endpoint, ctx.served_model, ctx.exchange, most, times=times) as client:
            client.model = await client.check_model()
            require_layers(ctx.exchange, client.model, self.layer_ids)

            async def work(row: Row) -> None:
                await self._prefill(client, row)
                self.done += 1
                ctx.report.progress(self.done, self.total, "rows")

            missing = (row for row, _ in self._generated() if row.id in self.missing)
            await for_each(missing, min(most, len(self.missing)), work)

    def _exclude_missing(self) -> None:
        for row, _ in self._generated():
            if row.id in self.missing:
                reason = "bad_states" if row.id in self.faults else "no_states"
                message = self.faults.get(row.id, "the row brings no hidden states")
                self._exclude(row, reason, f"{message}, and the job has no verifier to ask")

    async def _prefill(self, client: VerifierClient, row: Row) -> None:
        target, reason, message = self.rows.states_path(row.id), "", ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                states = await client.prefill(row.input_ids, request_id=f"{self.tag}-{row.id}-{attempt}")
                if states is None:
                    raise BadStates("the verifier names a file of another request")
                await asyncio.to_thread(take_states, states, target)
                await asyncio.to_thread(self._settle, row, "prefill")
                return
            except BadStates as error:
                target.unlink(missing_ok=True)
                reason, message = "bad_states", str(error)
            except RowRefused as refusal:
                reason, message = refusal.reason, refusal.message
                break
        self._exclude(row, reason, message)

    def _exclude(self, row: Row, reason: str, message: str) -> None:
        self.excluded[row.id] = {
            "row": row.id,
            "source": row.source,
            "line": row.line,
            "reason": reason,
            "message": message,
        }

    def _write_excluded(self) -> None:
        items = sorted(self.excluded.values(), key=lambda item: (item["source"], item["line"], item["row"]))
        with (self.ctx.out / "excluded.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
        if len(items) > self.ctx.spec.data.max_bad_fraction * self.total:
            first = "; ".join(f"row {item['row']}: {item['message']}" for item in items[:FIRST_SHOWN])
            message = f"{len(items)} of {self.total} rows have no good hidden states: {first}"
            if self.ctx.endpoint is None:
                hint = "more than data.max_bad_fraction; give verifier.endpoint, so that they can be asked for"
                raise UserError(message, where="dataset", hint=hint)
            hint = "more than data.max_bad_fraction; the good ones are kept"
            raise VerifierError(message, where=self.ctx.endpoint, hint=hint)

    def _lay_out(self) -> dict[str, Any]:
        folder, counts = self.ctx.out / "dataset", Counter[str]()
        with DatasetWriter(folder, self.ctx.work) as writer:
            for split in ("train", "val"):
                writer.extend(self._kept(split, counts))
        _require_something_to_learn(counts)
        meta = {
            "num_train": counts["train"],
            "num_val": counts["val"],
            "layer_ids": self.layer_ids,
            "hidden_size": self.hidden_size,
            "dtype": self.dtypes.most_common(1)[0][0],
            "tokens": counts["tokens"],
            "supervised_tokens": counts["supervised train"] + counts["supervised val"],
            "supervised_train_tokens": counts["supervised train"],
        }
        (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        return meta

    def _kept(self, split: str, counts: Counter[str]) -> Iterator[tuple[Row, Path]]:
        for row, _ in self._generated():
            if row.split == split and row.id not in self.excluded:
                counts[split] += 1
                counts["tokens"] += len(row.input_ids)
                counts[f"supervised {split}"] += row.supervised
                yield row, self.rows.states_path(row.id)


def _require_something_to_learn(counts: Counter[str]) -> None:
    """A stage that leaves nothing to train on says so here, before any GPU is leased."""
    if not counts["train"] or not counts["val"]:
        raise UserError(
            f"{counts['train']} rows to train on and {counts['val']} held out are left",
            where="dataset",
            hint="both are needed: give more prompts, or look into the excluded rows",
        )
    for split, what in (("train", "rows to train on"), ("val", "held-out rows")):
        if not counts[f"supervised {split}"]:
            raise UserError(
                f"no token of the {counts[split]} {what} is supervised",
                where="dataset",
                hint="a loss mask needs a 1 after its first position",
            )
