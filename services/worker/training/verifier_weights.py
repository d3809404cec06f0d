"""Has speculators load the verifier's embedding, head and final norm by their exact names.

The library itself takes the shortest name that ends in `lm_head.weight`; `shared.verifier_weights` says why that is
wrong, and finds the right ones.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from speculators.utils import loading

from shared.errors import UserError
from shared.verifier_weights import locate_verifier_tensors


def install() -> None:
    """Have speculators load the verifier's tensors through this module."""
    loading.load_model_layers = load_verifier_tensors


def load_verifier_tensors(names: Sequence[str], folder: str) -> dict[str, torch.Tensor]:
    """Load tensors by speculators' names (`embed_tokens.weight`, `lm_head.weight`, `model.norm.weight`).

    A head that is tied to the embedding is left out, as the caller expects.

    Raises:
        UserError: as for `locate_verifier_tensors`.
    """
    tensors = {}
    for name, found in locate_verifier_tensors(Path(folder), names).items():
        try:
            with safe_open(found.file, framework="pt", device="cpu") as file:
                tensors[name] = file.get_tensor(found.key)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{found.key} cannot be read: {error}", where=found.file.name) from None
    return tensors
