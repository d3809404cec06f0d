"""Finds the verifier's embedding, head and final norm by their exact names.

speculators takes the shortest name that ends in `lm_head.weight`: a decoy such as `aux.lm_head.weight` would win over
`language_model.lm_head.weight`. Here a name counts only with one of the prefixes that checkpoints really use, and a
shard counts only inside the verifier's folder.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from speculators.utils import loading

from shared.errors import UserError

PREFIXES = ("", "language_model.", "model.language_model.")
NAMES: dict[str, tuple[str, ...]] = {
    "embed_tokens.weight": ("model.embed_tokens.weight", "embed_tokens.weight"),
    "lm_head.weight": ("lm_head.weight",),
    "model.norm.weight": ("model.norm.weight", "norm.weight"),
}
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def install() -> None:
    """Have speculators load the verifier's tensors through this module."""
    loading.load_model_layers = load_verifier_tensors


def load_verifier_tensors(names: Sequence[str], folder: str) -> dict[str, torch.Tensor]:
    """Load tensors by speculators' names (`embed_tokens.weight`, `lm_head.weight`, `model.norm.weight`).

    A head that is absent because it is tied to the embedding is left out, as the caller expects.

    Raises:
        UserError: the embedding or the norm is missing, or a shard is missing, damaged or outside of the folder.
    """
    found = locate_verifier_tensors(Path(folder), names)
    tensors = {}
    for name, (shard, key) in found.items():
        try:
            with safe_open(shard, framework="pt", device="cpu") as file:
                tensors[name] = file.get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{key} cannot be read: {error}", where=shard.name) from None
    return tensors


def locate_verifier_tensors(folder: Path, names: Sequence[str]) -> dict[str, tuple[Path, str]]:
    """Return file and key of each tensor.

    Raises:
        UserError: as for `load_verifier_tensors`.
    """
    shards = _weight_map(folder)
    found = {}
    for name in names:
        candidates = [prefix + own for prefix in PREFIXES for own in NAMES.get(name, (name,))]
        key = next((candidate for candidate in candidates if candidate in shards), None)
        if key is not None:
            found[name] = (_inside(folder, shards[key], key), key)
        elif name != "lm_head.weight" or not _is_tied(folder):
            raise UserError(
                f"the verifier's weights have no {name}",
                where=str(folder.name),
                hint=f"looked for {', '.join(candidates)}",
            )
    return found


def _weight_map(folder: Path) -> dict[str, str]:
    index = folder / INDEX
    try:
        if index.is_file():
            weights: dict[str, str] = json.loads(index.read_text())["weight_map"]
            return weights
        with safe_open(folder / SINGLE, framework="pt", device="cpu") as file:
            return dict.fromkeys(file.keys(), SINGLE)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise UserError(
            f"the verifier's weights cannot be read: {error}",
            where=folder.name,
            hint=f"a safetensors checkpoint has {INDEX} or {SINGLE}",
        ) from None


def _inside(folder: Path, shard: str, key: str) -> Path:
    """The shard's path; a name that leaves the folder is refused (links of a download cache are not)."""
    if Path(shard).is_absolute() or ".." in Path(shard).parts:
        raise UserError(f"{key} is said to lie outside of the verifier's folder", where=INDEX)
    path = folder / shard
    if not path.is_file():
        raise UserError(f"{shard} is missing, which holds {key}", where=INDEX)
    return path


def _is_tied(folder: Path) -> bool:
    """Whether head and embedding are one tensor; Llama-like configurations say so explicitly."""
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    return bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
