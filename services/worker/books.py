"""The books of a stage: what came in, what went on, and why the rest did not; nothing is lost unnamed.

In: the summary that a stage returned, and the manifests of its inputs. A stage whose books are absent, do not balance,
or do not continue those of the stage before is a defect.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from shared.errors import InternalError
from shared.schemas.accounting import Accounting
from shared.schemas.job import Stage
from shared.schemas.manifest import Manifest

# Where a stage takes in exactly what an earlier one kept, in the same unit (a turn that was kept is a row).
CONTINUES = {Stage.CAPTURE: Stage.GENERATE, Stage.VOCAB: Stage.CAPTURE, Stage.TRAIN: Stage.CAPTURE}


def check_books(stage: Stage, summary: Mapping[str, Any], upstream: Mapping[str, Manifest]) -> None:
    """Hold a stage's books against themselves and those before.

    Raises:
        InternalError: they are absent, do not balance, or begin with another number than the stage before ended with.
    """
    if "accounting" not in summary:
        raise InternalError("the stage kept no books: its summary has no `accounting`", where=str(stage))
    try:
        books = Accounting.model_validate(summary["accounting"])
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise InternalError(f"the stage's books do not balance: {reason}", where=str(stage)) from None
    _check_continuation(stage, books.taken, CONTINUES.get(stage), upstream)
    if stage == Stage.GENERATE and "conversations" in summary:  # its unit is turns
        _check_continuation(stage, summary["conversations"], Stage.PREPARE, upstream)


def read_books(upstream: Mapping[str, Manifest]) -> dict[str, Accounting]:
    """The books of earlier stages, in the order of stages."""
    summaries = {str(stage): upstream[stage].summary for stage in Stage if stage in upstream}
    return {
        name: Accounting.model_validate(summary["accounting"])
        for name, summary in summaries.items()
        if "accounting" in summary
    }


def _check_continuation(stage: Stage, taken: int, before: Stage | None, upstream: Mapping[str, Manifest]) -> None:
    if before is None or before not in upstream:
        return
    kept = upstream[before].summary.get("accounting", {}).get("kept", taken)  # older manifests have no books
    if kept != taken:
        raise InternalError(f"{before} kept {kept}, {stage} took {taken} in: some were lost", where=str(stage))
