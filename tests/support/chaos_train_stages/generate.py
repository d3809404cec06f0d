"""generate, with a line for each of the made rows."""

from pathlib import Path
from typing import Any

from services.worker.stage_context import StageContext
from shared.schemas.accounting import Accounting
from tests.support.chaos_train_stages.capture import split_rows


def run(ctx: StageContext) -> dict[str, Any]:
    """Leave as many rows as capture will make."""
    count = sum(map(len, split_rows(Path(ctx.spec.verifier.model))))
    shard = ctx.out / f"rows_0-{count}"
    shard.mkdir()
    (shard / "rows.jsonl").write_text("{}\n" * count)
    return {"accounting": Accounting(unit="turns", taken=count, kept=count).model_dump()}
