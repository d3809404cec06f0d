"""Vocabulary files that a user brings: found by name, read without unpickling anything, checked against a verifier.

`t2d` ([V], 0 or 1) marks the verifier's tokens that the draft has; `d2t` ([v], integers) holds offsets: draft token i
stands for the verifier's token `i + d2t[i]`. Their files are `t2d.npy` and `d2t.npy`, as speculators writes them (also
with the size in the name, `t2d-32000.npy`), or hold tensors (`.pt`; both in `vocab_mapping.pt`) for a stage to read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import UserError

NPY_MAGIC = b"\x93NUMPY"
SHOWN = 5

Mask = NDArray[np.bool_]
# What numpy raises on a header or a body that is not what it says.
NPY_ERRORS = (ValueError, OSError, EOFError, SyntaxError, MemoryError, RecursionError, OverflowError, TypeError)


def read_npy(path: Path) -> NDArray[Any]:
    """The array of an `.npy` file, memory-mapped; nothing is unpickled, and a header is believed only as far as the
    file's size bears it out.

    Raises:
        UserError: it is not such a file, is truncated, or holds objects.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(NPY_MAGIC))
        if magic != NPY_MAGIC:
            raise ValueError("it does not begin as .npy files do")
        with np.errstate(over="ignore"):  # of a shape that no file can have
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except NPY_ERRORS as error:
        raise UserError(
            f"is not a usable .npy file: {str(error) or type(error).__name__}"[:300],
            where=path.name,
            hint="write it with numpy.save(..., allow_pickle=False)",
        ) from None
    return array


def check_vocabulary(
    t2d: NDArray[Any], d2t: NDArray[Any], names: Mapping[str, str], target_size: int, required: Mapping[int, str]
) -> Mask:
    """Check a vocabulary as our own are made; return `t2d` as booleans.

    Args:
        names: file names of the two arrays, for messages.
        target_size: V, the verifier's vocabulary.
        required: ids and texts of the control tokens that the draft must have.

    Raises:
        UserError: wrong shapes, types or ranges, arrays that contradict each other, absolute ids instead of offsets,
            or a control token that is left out.
    """
    marked = _check_t2d(t2d, names["t2d"], target_size)
    _check_d2t(d2t, marked, names, target_size)
    missing = [id_ for id_ in sorted(required) if id_ < target_size and not marked[id_]]
    if missing:
        shown = ", ".join(f"{id_} {required[id_]}".strip() for id_ in missing[:SHOWN])
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise UserError(
            f"the vocabulary leaves out control tokens that the verifier can emit: {shown}{more}",
            where=names["t2d"],
            hint="a draft that cannot say them never ends an answer: mark them in t2d and give them offsets in d2t",
        )
    return marked


def _check_t2d(t2d: NDArray[Any], name: str, target_size: int) -> Mask:
    if t2d.shape != (target_size,):
        raise UserError(
            f"has shape {t2d.shape}, wanted is one entry for each of the verifier's {target_size} tokens",
            where=name,
            hint="is it of another verifier, or are t2d and d2t swapped?",
        )
    if t2d.dtype.kind not in "biu":
        raise UserError(f"has type {t2d.dtype}, wanted are booleans", where=name)
    other = np.flatnonzero((t2d != 0) & (t2d != 1))
    if other.size:
        raise UserError(f"entry {other[0]} is {t2d[other[0]]}, wanted is 0 or 1", where=name)
    return np.asarray(t2d, dtype=np.bool_)


def _check_d2t(d2t: NDArray[Any], marked: Mask, names: Mapping[str, str], target_size: int) -> None:
    name, targets = names["d2t"], np.flatnonzero(marked)
    if d2t.ndim != 1 or d2t.dtype.kind not in "iu":
        raise UserError(f"has shape {d2t.shape} and type {d2t.dtype}, wanted are integers [v]", where=name)
    if d2t.shape != targets.shape or not targets.size:
        raise UserError(
            f"has {d2t.shape[0]} entries, but {names['t2d']} marks {targets.size} tokens",
            where=name,
            hint="they must be equal, and at least 1",
        )
    if np.array_equal(d2t, targets - np.arange(targets.size)):
        return
    if np.array_equal(np.sort(d2t), targets):
        raise UserError(
            "holds the verifier's token ids themselves; wanted are offsets, token id minus position",
            where=name,
            hint="save d2t - numpy.arange(len(d2t)) instead, in ascending order of the ids",
        )
    _refuse_offsets(d2t, marked, names, target_size)


def _refuse_offsets(d2t: NDArray[Any], marked: Mask, names: Mapping[str, str], target_size: int) -> None:
    """Say where offsets go wrong first: outside of the vocabulary, at an unmarked token, or out of order."""
    last = -1
    for place, offset in enumerate(d2t.tolist()):  # Python's integers: no overflow, whatever the file holds
        token = place + offset
        if not 0 <= token < target_size:
            problem = f"is outside of the verifier's {target_size} tokens"
        elif not marked[token]:
            problem = f"is not marked in {names['t2d']}"
        elif token <= last:
            problem = f"does not come after {last}: tokens must ascend"
        else:
            last = token
            continue
        raise UserError(
            f"entry {place} has offset {offset}, so stands for token {token}, which {problem}", where=names["d2t"]
        )
