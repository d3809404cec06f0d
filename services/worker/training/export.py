"""Writes a draft as a folder that vLLM and speculators load: `config.json` and `model.safetensors`."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

PUBLISHED = ("config.json", "model.safetensors")
UNPUBLISHED_KEYS = ("_name_or_path", "auto_map", "torch_dtype")


def export_draft(
    model: Any,
    folder: Path,
    *,
    dtype: str,
    shape: Mapping[str, Any],
    verifier_name: str,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write the draft with speculators' own `save_pretrained`, then make its config say everything explicitly.

    Args:
        model: the speculators model (not its DDP wrapper).
        dtype: type of the floating-point tensors on disk.
        shape: complete decoder configuration; the library leaves out what equals its defaults.
        verifier_name: hub id or bare name; the library would write the local path.
        weights: trained parameters to use instead of the model's present ones, by name.
    """
    state = dict(model.state_dict())
    state.update(weights or {})
    target_dtype = getattr(torch, dtype)
    saved = {name: tensor.to(target_dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary, state_dict=saved)
    path = temporary / "config.json"
    config = complete_config(json.loads(path.read_text()), dtype, shape, verifier_name)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for extra in temporary.iterdir():  # the library adds its own source code
        if extra.name not in PUBLISHED:
            extra.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def complete_config(config: dict[str, Any], dtype: str, shape: Mapping[str, Any], verifier_name: str) -> dict[str, Any]:
    """Return the library's config with the whole decoder, the type on disk, and no path of this machine."""
    config = {key: value for key, value in config.items() if key not in UNPUBLISHED_KEYS}
    decoder = {**config.get("transformer_layer_config", {}), **shape, "dtype": dtype}
    decoder = {key: value for key, value in decoder.items() if key not in UNPUBLISHED_KEYS}
    speculators = dict(config["speculators_config"])
    speculators["verifier"] = {**speculators["verifier"], "name_or_path": verifier_name}
    return {
        **config,
        "dtype": dtype,
        "transformer_layer_config": decoder,
        "speculators_config": speculators,
    }
