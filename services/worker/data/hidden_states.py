"""Hidden-state files: checked, clipped and converted before anything trains on them.

A file holds `hidden_states` ([S, n_aux + 1, H], the verifier's dtype; the last slot is the final layer before the final
norm) and `token_ids` ([S]).
"""

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from services.worker.data.exchange import BadStates

TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def check_states(path: Path, token_ids: list[int], slots: int, hidden_size: int) -> str:
    """Check a file against the row it belongs to; return its dtype (`float32`, `bfloat16`).

    Args:
        token_ids: the row's ids, length S.
        slots: captured layers, n_aux + 1.
        hidden_size: H.

    Raises:
        BadStates: unreadable, other ids, wrong shape, NaN or infinite, or all zero in some slot.
    """
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise BadStates(f"unreadable: {error}") from None
    if set(tensors) != {"hidden_states", "token_ids"}:
        raise BadStates(f"holds {sorted(tensors)} instead of hidden_states and token_ids")
    states, ids = tensors["hidden_states"], tensors["token_ids"]
    if ids.tolist() != token_ids:
        raise BadStates(f"holds other token ids ({ids.numel()}) than the row ({len(token_ids)})")
    expected = (len(token_ids), slots, hidden_size)
    if tuple(states.shape) != expected:
        raise BadStates(f"hidden_states has shape {tuple(states.shape)}, expected {expected}")
    if not torch.isfinite(states).all():
        raise BadStates("hidden_states holds NaN or infinite values")
    if not states.abs().amax(dim=(0, 2)).gt(0).all():
        raise BadStates("hidden_states is all zero in a layer")
    return str(states.dtype).removeprefix("torch.")


def rewrite_states(path: Path, length: int, dtype: str) -> None:
    """Clip a file to its first `length` positions and convert it to `dtype` (`auto`: as it is), where needed."""
    tensors = load_file(path)
    states, ids = tensors["hidden_states"], tensors["token_ids"]
    wanted = TORCH_DTYPES.get(dtype, states.dtype)
    if states.shape[0] == length and states.dtype == wanted:
        return
    temporary = path.with_name(path.name + ".tmp")
    clipped = {"hidden_states": states[:length].to(wanted).contiguous(), "token_ids": ids[:length].contiguous()}
    save_file(clipped, temporary)
    os.replace(temporary, path)
