"""Rows that came as token ids: taken as they are, without a request to the verifier.

In: a prepared row with `input_ids` and `loss_mask`, perhaps with ready-made hidden states. Out: a row.
"""

from pathlib import Path

from services.worker.data.rows import Row, RowFolder
from services.worker.data.turns import FROM_DATASET
from shared.artifact_store import link_or_copy
from shared.data.refusal import RowRejected
from shared.data.turns import check_mask
from shared.schemas.prepared import Prepared


def token_row(prepared: Prepared, max_seq_len: int) -> Row:
    """Make a row of token ids, clipped to `max_seq_len`.

    Raises:
        RowRejected: nothing of it is learnt.
    """
    ids, mask = prepared.input_ids or [], prepared.loss_mask or []
    check_mask(mask, max_seq_len)
    return Row(
        id=f"{prepared.id}.0",
        conversation=prepared.id,
        turn=0,
        line=prepared.line,
        source=prepared.source,
        split=prepared.split,
        input_ids=ids[:max_seq_len],
        loss_mask=mask[:max_seq_len],
        last_id=prepared.last_id if len(ids) <= max_seq_len else None,
        finish_reason=FROM_DATASET,
        has_states=False,
        clipped=len(ids) > max_seq_len,
    )


def take_ready_states(row: Row, name: str, folder: Path, rows: RowFolder) -> None:
    """Put ready-made states beside a row; the capture stage checks them as it checks the verifier's.

    Args:
        name: their path below `folder`.

    Raises:
        RowRejected: there is no such file.
    """
    states = folder / name
    if not states.is_file() or not states.resolve().is_relative_to(folder.resolve()):
        raise RowRejected("states_missing", f"the dataset has no file {name}")
    link_or_copy(states.resolve(), rows.states_path(row.id))
    row.has_states = True
