"""vocab: counts the supervised tokens of the training split and builds the draft's vocabulary.

In: `capture`. Out: `t2d.npy` (bool [V]), `d2t.npy` (int64 [v], offsets), `token_freq.npy` (int64 [V]), `report.json`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from datasets import load_from_disk

from services.worker.data.rows import read_jsonl
from services.worker.data.vocabulary import Counts, choose_tokens, coverage, offsets
from services.worker.stage_context import StageContext
from shared.data.control_tokens import emitted_token_ids
from shared.errors import UserError
from shared.verifier_config import read_verifier_config


def run(ctx: StageContext) -> dict[str, Any]:
    """Build the vocabulary mapping.

    Returns:
        Sizes, how many tokens were counted, and the share of both splits' supervised tokens that the draft can say.

    Raises:
        UserError: no token is supervised, an id is outside the verifier's vocabulary, or the draft's size does not fit.
    """
    verifier = Path(ctx.spec.verifier.model)
    target_size = read_verifier_config(verifier).vocab_size
    counts = count_supervised(ctx.inputs["capture"] / "dataset", target_size)
    if not counts["train"].sum():
        raise UserError("no token of the training split is supervised", where="dataset")
    control = sorted(id_ for id_ in emitted_token_ids(verifier) if id_ < target_size)
    t2d = choose_tokens(counts["train"], ctx.spec.draft.vocab_size, control)
    np.save(ctx.out / "t2d.npy", t2d)
    np.save(ctx.out / "d2t.npy", offsets(t2d))
    np.save(ctx.out / "token_freq.npy", counts["train"])
    report = {
        "target_vocab_size": target_size,
        "draft_vocab_size": int(t2d.sum()),
        "distinct_supervised": int((counts["train"] > 0).sum()),
        "control_tokens": len(control),
        "supervised_train": int(counts["train"].sum()),
        "supervised_val": int(counts["val"].sum()),
        "coverage_train": coverage(t2d, counts["train"]),
        "coverage_val": coverage(t2d, counts["val"]),
    }
    (ctx.out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return report


def count_supervised(dataset: Path, target_size: int) -> dict[str, Counts]:
    """Count each split's supervised tokens: those under the loss mask, and each answer's last id.

    Raises:
        UserError: a row holds an id that the verifier's vocabulary does not have.
    """
    rows = load_from_disk(str(dataset)).with_format("numpy")
    counts = {split: np.zeros(target_size, dtype=np.int64) for split in ("train", "val")}
    for entry, row in zip(read_jsonl(dataset / "rows.jsonl"), rows, strict=True):
        ids = np.append(row["input_ids"][row["loss_mask"] == 1], entry["last_id"])
        outside = ids[(ids < 0) | (ids >= target_size)]
        if outside.size:
            raise UserError(
                f"token id {int(outside[0])} is outside the verifier's vocabulary of {target_size}",
                where=f"row {entry['row_id']}",
            )
        counts[entry["split"]] += np.bincount(ids, minlength=target_size)
    return counts
