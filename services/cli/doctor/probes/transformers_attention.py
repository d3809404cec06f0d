"""Which attention implementations the installed transformers offers here. Out: `device`, and `implementations` by name.

Null stands for one that works, a text for why one does not.
"""

import json
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import import_utils

NO_BACKWARD = "no backward pass on a CPU: it cannot train here"
FLASH = {
    "flash_attention_2": ("is_flash_attn_2_available", "flash-attn"),
    "flash_attention_3": ("is_flash_attn_3_available", "flash-attn-3"),
    "flash_attention_4": ("is_flash_attn_4_available", "flash-attn-4"),
}


def look() -> dict[str, Any]:
    """Every implementation that transformers has registered, and whether it can be used."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = [name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if "|" not in name]
    return {
        "device": device,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "implementations": {name: _obstacle(name, device) for name in sorted({"eager", *names})},
    }


def _obstacle(name: str, device: str) -> str | None:
    if name in FLASH:
        test, package = FLASH[name]
        if getattr(import_utils, test)():
            return None
        return f"{package} is not installed" if device == "cuda" else f"{package} needs CUDA"
    if name == "flex_attention":
        if not import_utils.is_torch_flex_attn_available():
            return "this torch has no flex attention"
        return None if device == "cuda" else NO_BACKWARD
    return _try_sdpa(device) if name == "sdpa" else None


def _try_sdpa(device: str) -> str | None:
    try:
        states = torch.ones(1, 2, 8, 16, device=device, requires_grad=True)
        torch.autograd.backward(F.scaled_dot_product_attention(states, states, states, is_causal=True).sum())
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


if __name__ == "__main__":
    print(json.dumps(look()))
