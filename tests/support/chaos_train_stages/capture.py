"""capture, with made rows that a draft can learn."""

from pathlib import Path
from typing import Any

from services.worker.stage_context import StageContext
from shared.schemas.accounting import Accounting
from tests.support import synthetic_rows as rows

TRAIN_ROWS, VAL_ROWS = 60, 10


def split_rows(verifier: Path) -> tuple[list[rows.Row], list[rows.Row]]:
    """The same rows each time: those to train on, and those held out."""
    made = rows.made_rows(verifier, TRAIN_ROWS + VAL_ROWS)
    return made[:TRAIN_ROWS], made[TRAIN_ROWS:]


def run(ctx: StageContext) -> dict[str, Any]:
    """Leave a dataset in the trainer's layout."""
    train, val = split_rows(Path(ctx.spec.verifier.model))
    rows.write_dataset(ctx.out / "dataset", train, val, [*rows.AUX_LAYERS, rows.LAYERS])
    count = len(train) + len(val)
    return {"accounting": Accounting(unit="rows", taken=count, kept=count).model_dump()}
