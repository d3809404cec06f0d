"""Mends the fused loss under torch 2.11, on CUDA only.

There the two autotuned kernels of the loss share one list of configurations, and torch.compile refuses to track it
twice (`ListVariable already tracked`). Giving each kernel its own copy is enough. Other versions of torch are left
alone.
"""

import importlib
import logging

import torch

logger = logging.getLogger(__name__)

BROKEN_TORCH = "2.11."


def guard_fused_loss() -> bool:
    """Give every autotuned kernel its own configurations; returns whether anything had to be done."""
    if not torch.__version__.startswith(BROKEN_TORCH) or not torch.cuda.is_available():
        return False
    fused = importlib.import_module("speculators.losses.fused")
    tuned = [kernel for kernel in vars(fused).values() if hasattr(kernel, "configs")]
    for kernel in tuned:
        kernel.configs = list(kernel.configs)
    logger.info("gave %d fused loss kernels their own tuning configurations", len(tuned))
    return bool(tuned)
