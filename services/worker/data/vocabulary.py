"""The draft's vocabulary: which of the verifier's tokens it can say.

`t2d` (bool [V]) marks the verifier's tokens that the draft has; `d2t` (int64 [v]) holds offsets, so that draft token i
stands for the verifier's token `i + d2t[i]`, ascending.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from shared.errors import UserError

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]


def choose_tokens(counts: Counts, draft_size: int, required: Iterable[int], preferred: Iterable[int] = ()) -> Mask:
    """Choose the draft's tokens: the required ones, then the most frequent, ties to the lower id.

    Where fewer tokens were counted than there is room, `preferred` ones fill it first, then the lowest ids.

    Args:
        counts: how often each of the verifier's V tokens was supervised in training.
        draft_size: v, at most V.
        required: ids that the draft must have (control tokens that the verifier can emit).
        preferred: ids that it shall have rather than others that were never counted (all other control tokens).

    Returns:
        `t2d`.

    Raises:
        UserError: the size is out of range, or too small for the required tokens.
    """
    target_size = int(counts.shape[0])
    if not 1 <= draft_size <= target_size:
        raise UserError(
            f"a draft vocabulary of {draft_size} does not fit the verifier's {target_size} tokens",
            where="/draft/vocab_size",
            hint=f"give a number from 1 to {target_size}",
        )
    kept = np.zeros(target_size, dtype=np.bool_)
    kept[sorted(set(required))] = True
    missing = draft_size - int(kept.sum())
    if missing < 0:
        raise UserError(
            f"a draft vocabulary of {draft_size} cannot hold the verifier's {int(kept.sum())} control tokens",
            where="/draft/vocab_size",
            hint=f"give at least {int(kept.sum())}",
        )
    order = _by_use(counts, preferred)
    kept[order[~kept[order]][:missing]] = True
    return kept


def offsets(t2d: Mask) -> NDArray[np.int64]:
    """`d2t` for a `t2d`."""
    targets = np.flatnonzero(t2d)
    return (targets - np.arange(targets.shape[0])).astype(np.int64)


def coverage(t2d: Mask, counts: Counts) -> float | None:
    """Share of counted tokens that the draft has; None where nothing was counted."""
    total = int(counts.sum())
    return float(counts[t2d].sum() / total) if total else None


def _by_use(counts: Counts, preferred: Iterable[int]) -> NDArray[np.intp]:
    """All ids: the most frequent first, then preferred ones among those never counted, then by id."""
    later = np.ones(counts.shape[0], dtype=np.bool_)
    later[sorted(set(preferred))] = False
    order: NDArray[np.intp] = np.lexsort((later & (counts == 0), -counts))
    return order
