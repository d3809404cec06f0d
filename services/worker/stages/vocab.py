"""vocab: counts the supervised tokens of the training split and builds the draft's vocabulary, or checks a given one.

In: `capture`, and `vocabulary` (a user's vocabulary files) where the job names one. Out: `t2d.npy` (bool [V]),
`d2t.npy` (int64 [v], offsets), `token_freq.npy` (int64 [V]), `report.json`, which says what was counted (`counted_on`).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from services.worker.data.supervised_counts import count_supervised
from services.worker.data.user_vocabulary import read_user_vocabulary
from services.worker.data.vocabulary import Counts, Mask, choose_tokens, coverage, offsets
from services.worker.stage_context import StageContext
from shared.data.control_tokens import added_tokens, emitted_token_ids
from shared.errors import UserError
from shared.schemas.accounting import Accounting
from shared.verifier_config import read_verifier_config

MUCH_LESS = 0.05  # share of tokens; a given vocabulary that covers so much less than one of our own is worth a warning


def run(ctx: StageContext) -> dict[str, Any]:
    """Build the vocabulary mapping.

    Returns:
        Sizes, how many tokens were counted, and the share of both splits' supervised tokens that the draft can say.

    Raises:
        UserError: no token is supervised, an id is outside the verifier's vocabulary, the draft's size does not fit, or
            the given vocabulary cannot be used.
    """
    verifier = Path(ctx.spec.verifier.model)
    target_size = read_verifier_config(verifier).vocab_size
    counted = count_supervised(ctx.inputs["capture"] / "dataset", target_size)
    train, val = counted.by_split["train"], counted.by_split["val"]
    if not train.sum():
        raise UserError("no token of the training split is supervised", where="dataset")
    required = sorted(id_ for id_ in emitted_token_ids(verifier) if id_ < target_size)
    preferred = sorted(id_ for id_ in added_tokens(verifier) if id_ < target_size)
    t2d, given = _tokens(ctx, train, val, required, preferred)
    np.save(ctx.out / "t2d.npy", t2d)
    np.save(ctx.out / "d2t.npy", offsets(t2d))
    np.save(ctx.out / "token_freq.npy", train)
    report = {
        "target_vocab_size": target_size,
        "draft_vocab_size": int(t2d.sum()),
        "distinct_supervised": int((train > 0).sum()),
        "control_tokens": len(required),
        "supervised_train": int(train.sum()),
        "supervised_val": int(val.sum()),
        "coverage_train": coverage(t2d, train),
        "coverage_val": coverage(t2d, val),
        "counted_on": ctx.input_digests.get("capture"),
        "verifier": ctx.input_digests.get("verifier"),
        **given,
        "accounting": Accounting(unit="rows", taken=counted.rows, kept=counted.rows).model_dump(),
    }
    (ctx.out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return report


def _tokens(
    ctx: StageContext, train: Counts, val: Counts, required: list[int], preferred: list[int]
) -> tuple[Mask, dict[str, Any]]:
    """The draft's tokens, and what the report says of a vocabulary that was given."""
    draft = ctx.spec.draft
    if draft.vocabulary is None:
        return choose_tokens(train, draft.vocab_size, required, preferred), {}
    texts = added_tokens(Path(ctx.spec.verifier.model))
    given = read_user_vocabulary(ctx.inputs["vocabulary"], len(train), {id_: texts.get(id_, "") for id_ in required})
    size = int(given.sum())
    if size != draft.vocab_size:
        raise UserError(
            f"the vocabulary {draft.vocabulary} has {size} tokens, the job asks for {draft.vocab_size}",
            where="/draft/vocab_size",
            hint=f"give {size}, or leave it out",
        )
    own = choose_tokens(train, size, required, preferred)
    compared = {"own_coverage_train": coverage(own, train), "own_coverage_val": coverage(own, val)}
    reached, possible = coverage(given, train) or 0.0, compared["own_coverage_train"] or 0.0
    if reached < possible - MUCH_LESS:
        ctx.report.warn(
            f"the vocabulary {draft.vocabulary} covers {reached:.1%} of the tokens to learn; "
            f"one of the same size counted on these rows covers {possible:.1%}"
        )
    return given, {"given": ctx.input_digests.get("vocabulary"), **compared}
