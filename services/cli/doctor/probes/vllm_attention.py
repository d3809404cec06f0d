"""Which attention backends the installed vLLM offers here. Out: `platform`, and by use (`verifier`, `draft`) `chosen`,
`offered`, and `obstacles` by backend where vLLM names them.

Uses: Kimi-K2.5's latent attention (a state of 512 + 64 for all heads), and the heads of 128 of a draft.
"""

import json
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig


def look() -> dict[str, Any]:
    """What vLLM would take, and what it could take, for each use."""
    dtype = torch.float32 if current_platform.is_cpu() else torch.bfloat16
    uses = {
        "verifier": AttentionSelectorConfig(576, dtype, "auto", None, use_mla=True),
        "draft": AttentionSelectorConfig(128, dtype, "auto", None),
    }
    return {
        "platform": current_platform.device_name or "none",
        "uses": {use: _backends(config) for use, config in uses.items()},
    }


def _backends(config: AttentionSelectorConfig) -> dict[str, Any]:
    if current_platform.is_cuda():
        capability = current_platform.get_device_capability()
        valid, invalid = current_platform.get_valid_backends(capability, config)
        offered = [one.backend.name for one in sorted(valid, key=lambda one: one.priority)]
        obstacles = {backend.name: "; ".join(reasons) for backend, (_, reasons) in invalid.items()}
    else:
        offered = [backend.name for backend in AttentionBackendEnum if _takes(backend, config)]
        obstacles = {}
    return {"chosen": _name(_path(None, config)), "offered": offered, "obstacles": obstacles}


def _takes(backend: AttentionBackendEnum, config: AttentionSelectorConfig) -> bool:
    """Whether the platform takes a backend that it is asked for, rather than another one."""
    path = _path(backend, config)
    return bool(path) and path == backend.value


def _path(backend: AttentionBackendEnum | None, config: AttentionSelectorConfig) -> str | None:
    try:
        return str(current_platform.get_attn_backend_cls(backend, config))
    except (ValueError, NotImplementedError, ImportError):
        return None


def _name(path: str | None) -> str | None:
    return next((backend.name for backend in AttentionBackendEnum if path and backend.value == path), path)


if __name__ == "__main__":
    print(json.dumps(look()))
