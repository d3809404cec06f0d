"""Hidden-state files: taken over from the verifier, checked before anything trains on them.

A file holds `hidden_states` ([S, n_aux + 1, H], the verifier's dtype; the last slot is the final layer before the final
norm) and `token_ids` ([S]). The verifier writes it after it has answered, under an flock on `FILE.lock`.
"""

import fcntl
import os
import shutil
import time
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

LOCK_TIMEOUT_S = 120.0
LOCK_POLL_S = 0.01
TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class BadStates(Exception):
    """A file of hidden states cannot be used; the message says why."""


def take_states(source: Path, target: Path) -> None:
    """Wait until the verifier has written `source`, then move it to `target`, whole.

    Raises:
        BadStates: it is not written in time, or is not there.
    """
    lock = source.with_name(source.name + ".lock")
    _wait_for_writer(lock, source)
    temporary = target.with_name(target.name + ".tmp")
    try:
        shutil.move(source, temporary)  # a rename on one filesystem, else a copy
        os.replace(temporary, target)
    except FileNotFoundError:
        raise BadStates(f"the verifier left no file {source.name}") from None
    finally:
        lock.unlink(missing_ok=True)


def drop_states(source: Path | None) -> None:
    """Remove a file that nobody wants, with its lock."""
    if source is not None:
        source.unlink(missing_ok=True)
        source.with_name(source.name + ".lock").unlink(missing_ok=True)


def sweep_exchange(exchange: Path, tag: str) -> int:
    """Remove what the verifier wrote for requests tagged `tag` and nobody collected; return how many files."""
    leftovers = [path for path in exchange.iterdir() if tag in path.name] if exchange.is_dir() else []
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)


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


def _wait_for_writer(lock: Path, source: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        if source.exists():
            return
        raise BadStates(f"the verifier left no file {source.name}") from None
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BadStates(f"{source.name} was not written within {LOCK_TIMEOUT_S:g} s") from None
                time.sleep(LOCK_POLL_S)
    finally:
        os.close(descriptor)
