"""Hidden-state files: checked, clipped and converted before anything trains on them.

A file holds `hidden_states` ([S, n_aux + 1, H], the verifier's dtype; the last slot is the final layer before the final
norm) and `token_ids` ([S]).
"""

import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from services.worker.data.exchange import BadStates
from services.worker.data.storage_forms import CAPTURED_DTYPES, FORMS, dtype_name

STATES, TOKEN_IDS = "hidden_states", "token_ids"


def settle_states(path: Path, token_ids: list[int], slots: int, hidden_size: int, form: str) -> str:
    """Make a file of captured states the one that belongs to a row, or refuse it; return its dtype (`float32`, ...).

    It is checked, clipped to the row's length, and put into the form in which states are stored. A file that fits is
    left as it is; another name of the same file never changes.

    Args:
        token_ids: the row's ids, length S; the file may go on after them (the row was clipped).
        slots: captured layers, n_aux + 1.
        hidden_size: H.
        form: a name of `storage_forms.FORMS`.

    Raises:
        BadStates: see `check_states`.
    """
    states, ids = _load(path)
    length = len(token_ids)
    _check(states[:length], ids[:length], token_ids, slots, hidden_size)
    if states.dtype not in CAPTURED_DTYPES:
        raise BadStates(f"hidden_states has dtype {dtype_name(states.dtype)}, which no verifier computes in")
    stored = FORMS[form].store(states[:length])
    if not torch.isfinite(stored).all():
        raise BadStates(f"hidden_states does not fit into {form}")
    if states.shape[0] != length or stored.dtype != states.dtype:
        temporary = path.with_name(path.name + ".tmp")
        save_file({STATES: stored.contiguous(), TOKEN_IDS: ids[:length].contiguous()}, temporary)
        os.replace(temporary, path)
    return dtype_name(stored.dtype)


def check_states(path: Path, token_ids: list[int], slots: int, hidden_size: int, dtype: str | None = None) -> str:
    """Check a file against the row it belongs to; return its dtype (`float32`, `bfloat16`).

    Args:
        token_ids: the row's ids, length S.
        slots: captured layers, n_aux + 1.
        hidden_size: H.
        dtype: that it must have; None: any that verifiers compute in.

    Raises:
        BadStates: unreadable, other ids, wrong shape or dtype, NaN or infinite, or all zero in some slot.
    """
    states, ids = _load(path)
    _check(states, ids, token_ids, slots, hidden_size)
    found = dtype_name(states.dtype)
    if states.dtype not in CAPTURED_DTYPES or (dtype is not None and found != dtype):
        raise BadStates(f"hidden_states has dtype {found}, expected {dtype or 'a floating one'}")
    return found


def stored_dtype(path: Path) -> str:
    """The dtype of a file's states, from its header."""
    with safe_open(path, framework="pt") as file:
        return dtype_name(file.get_slice(STATES)[:0].dtype)


def _load(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise BadStates(f"unreadable: {error}") from None
    if set(tensors) != {STATES, TOKEN_IDS}:
        raise BadStates(f"holds {sorted(tensors)} instead of {STATES} and {TOKEN_IDS}")
    return tensors[STATES], tensors[TOKEN_IDS]


def _check(states: torch.Tensor, ids: torch.Tensor, token_ids: list[int], slots: int, hidden_size: int) -> None:
    if ids.tolist() != token_ids:
        raise BadStates(f"holds other token ids ({ids.numel()}) than the row ({len(token_ids)})")
    expected = (len(token_ids), slots, hidden_size)
    if tuple(states.shape) != expected:
        raise BadStates(f"hidden_states has shape {tuple(states.shape)}, expected {expected}")
    if not torch.isfinite(states).all():
        raise BadStates("hidden_states holds NaN or infinite values")
    if not states.abs().amax(dim=(0, 2)).gt(0).all():
        raise BadStates("hidden_states is all zero in a layer")
