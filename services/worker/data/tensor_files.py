"""Reads `.pt` files that a user brings: plain tensors and plain dictionaries, by torch's weights-only loader.

That loader runs no code of the file: it knows the few names that tensors need and refuses all others.
"""

import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shared.errors import UserError

MAX_ELEMENTS = 1 << 26


def load_pt(path: Path) -> Any:
    """What a `.pt` file holds.

    Raises:
        UserError: it is not such a file, is compressed, or holds more than tensors and plain values.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
        if not stored:  # torch never compresses; a small file could hide a huge one
            raise ValueError("it is compressed")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file can make the loader raise anything
        problem = (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, UnpicklingError):  # torch's own words advise to switch its guard off
            problem = "it holds more than tensors and plain values"
        raise UserError(
            f"cannot be read with weights only: {problem}"[:300],
            where=path.name,
            hint="save plain tensors with torch.save; nothing that needs code to load is taken",
        ) from None


def tensor_array(value: Any, where: str) -> NDArray[Any]:
    """A tensor as a one-dimensional array.

    Raises:
        UserError: it is something else.
    """
    usable = (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
        and value.ndim == 1
        and value.numel() <= MAX_ELEMENTS
        and value.dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    )
    if not usable:
        kind = type(value).__name__
        if isinstance(value, torch.Tensor):
            kind = f"a tensor of type {value.dtype} and shape {tuple(value.shape)}"
        raise UserError(f"holds {kind}, wanted is a plain tensor of integers or booleans [n]", where=where)
    return np.asarray(value.numpy())
