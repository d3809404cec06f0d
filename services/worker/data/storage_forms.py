"""The forms in which hidden states are stored, by the name that `capture.dtype` gives them.

A form turns captured states into what the file holds, and names the dtype that the file must then have. The trainer
reads `hidden_states` as it lies, so every form must be one that it can load. A smaller form (fp8 with its scales) would
be one more entry here, with the inverse in front of the trainer's reader; the job document refuses it until there is
one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

# What verifiers compute in; anything else (integers, float64) is not a verifier's state.
CAPTURED_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


@dataclass(frozen=True)
class StorageForm:
    """One form.

    Attributes:
        dtype: of stored states; None: the verifier's own.
        store: captured states [S, L, H] into stored ones, of the same shape.
    """

    dtype: torch.dtype | None
    store: Callable[[torch.Tensor], torch.Tensor]


FORMS: dict[str, StorageForm] = {
    "auto": StorageForm(None, lambda states: states),
    "bfloat16": StorageForm(torch.bfloat16, lambda states: states.to(torch.bfloat16)),
    "float32": StorageForm(torch.float32, lambda states: states.to(torch.float32)),
}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")
