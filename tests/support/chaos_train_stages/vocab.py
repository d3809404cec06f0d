"""vocab, counted on the made rows."""

import json
from pathlib import Path
from typing import Any

from services.worker.stage_context import StageContext
from shared.schemas.accounting import Accounting
from tests.support import synthetic_rows as rows
from tests.support.chaos_train_stages.capture import split_rows


def run(ctx: StageContext) -> dict[str, Any]:
    """Leave the draft's vocabulary."""
    train, val = split_rows(Path(ctx.spec.verifier.model))
    rows.write_vocabulary(ctx.out, train, val, rows.VOCAB, ctx.spec.draft.vocab_size)
    report = json.loads((ctx.out / "report.json").read_text())
    (ctx.out / "report.json").write_text(json.dumps(report | {"counted_on": ctx.input_digests["capture"]}))
    count = len(train) + len(val)
    return {"accounting": Accounting(unit="rows", taken=count, kept=count).model_dump()}
