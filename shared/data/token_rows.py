"""Rows that come as token ids: `input_ids`, and a `loss_mask` that is 1 where a token is learnt."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from shared.data.refusal import RowRejected

BITS = {0, 1}


@dataclass
class TokenRow:
    """Token ids (length S) with their mask (length S), clipped to the longest that a row may be."""

    input_ids: list[int]
    loss_mask: list[int]
    notes: Counter[str] = field(default_factory=Counter)


def parse_token_row(row: dict[str, Any], vocab_size: int | None, max_seq_len: int) -> TokenRow:
    """Read a row of token ids.

    The trainer learns a token from the state before it: a mask that is 1 at the first position alone teaches nothing.

    Args:
        vocab_size: ids lie below it; None where the verifier is not known.

    Raises:
        RowRejected
    """
    ids = _ids(row.get("input_ids"), vocab_size)
    mask = _mask(row.get("loss_mask"), len(ids))
    if 1 not in mask[1:]:
        raise RowRejected("no_supervised_token", f"none of its {len(ids)} tokens can be learnt from its loss_mask")
    if len(ids) <= max_seq_len:
        return TokenRow(ids, mask)
    if 1 not in mask[1:max_seq_len]:
        first = mask.index(1, 1)
        message = f"its first learnt token is at {first + 1}, beyond data.max_seq_len {max_seq_len}"
        raise RowRejected("prompt_too_long", message)
    return TokenRow(ids[:max_seq_len], mask[:max_seq_len], Counter(clipped=1))


def check_last_id(last_id: int, vocab_size: int | None) -> int:
    """Check the id that a row's last state foretells.

    Raises:
        RowRejected
    """
    if last_id < 0 or (vocab_size is not None and last_id >= vocab_size):
        raise RowRejected("bad_token_id", f"last_id is {last_id}, which is none of the verifier's tokens")
    return last_id


def _ids(ids: Any, vocab_size: int | None) -> list[int]:
    if not isinstance(ids, list):
        raise RowRejected("bad_token_id", f"input_ids is of type {type(ids).__name__}, not a list of token ids")
    if not ids:
        raise RowRejected("no_supervised_token", "input_ids is empty")
    if set(map(type, ids)) != {int}:  # True is an int for isinstance
        place = next(i for i, item in enumerate(ids) if type(item) is not int)
        raise RowRejected("bad_token_id", f"input_ids has {str(ids[place])[:80]!r} at {place + 1}, not a whole number")
    largest = max(ids)
    if min(ids) < 0 or (vocab_size is not None and largest >= vocab_size):
        top = "" if vocab_size is None else f" and {vocab_size - 1}, the verifier's last"
        place = next(i for i, item in enumerate(ids) if item < 0 or (vocab_size is not None and item >= vocab_size))
        raise RowRejected("bad_token_id", f"input_ids has {ids[place]} at {place + 1}: ids lie between 0{top}")
    return ids


def _mask(mask: Any, length: int) -> list[int]:
    if mask is None:
        raise RowRejected("no_loss_mask", "has input_ids without a loss_mask")
    if not isinstance(mask, list):
        raise RowRejected("bad_mask", f"loss_mask is of type {type(mask).__name__}, not a list")
    if len(mask) != length:
        raise RowRejected("mask_length", f"loss_mask has {len(mask)} entries for {length} token ids")
    if not set(map(type, mask)) <= {int, bool} or not set(mask) <= BITS:
        place = next(i for i, item in enumerate(mask) if type(item) not in (int, bool) or item not in BITS)
        raise RowRejected("bad_mask", f"loss_mask has {str(mask[place])[:80]!r} at {place + 1}, not 0 or 1")
    return list(map(int, mask))
