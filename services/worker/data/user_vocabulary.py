"""Reads a dataset of kind `vocabulary`: a user's `t2d` and `d2t`, as `.npy` or as tensors in `.pt` files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from shared.data.vocabulary_files import Mask, check_vocabulary, read_npy
from shared.data.vocabulary_names import BOTH_NAME, vocabulary_names
from shared.errors import UserError


def read_user_vocabulary(folder: Path, target_size: int, required: Mapping[int, str]) -> Mask:
    """Read and check the vocabulary in a dataset's folder; returns `t2d`.

    Args:
        target_size: V.
        required: ids and texts of the control tokens that it must hold.

    Raises:
        UserError: the files cannot be read or do not fit; `where` is the file's name.
    """
    files = {path.name: path for path in (folder / "files").iterdir()}
    names = vocabulary_names(files)
    arrays = {array: _read(files[name], array) for array, name in names.items()}
    return check_vocabulary(arrays["t2d"], arrays["d2t"], names, target_size, required)


def _read(path: Path, array: str) -> NDArray[Any]:
    if path.suffix == ".npy":
        return read_npy(path)
    from services.worker.data.tensor_files import load_pt, tensor_array  # noqa: PLC0415 - torch takes seconds to load

    content = load_pt(path)
    if isinstance(content, dict) and (path.name == BOTH_NAME or array in content):
        if array not in content:
            raise UserError(f"has no {array}, only {sorted(map(str, content))[:10]}", where=path.name)
        content = content[array]
    return tensor_array(content, path.name)
