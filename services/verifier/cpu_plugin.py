"""vLLM plugin (`vllm.general_plugins`): lets CPU attention share the block size of the CPU kernel for latent attention.

On a CPU multi-head latent attention takes blocks of 16 only, while plain attention, which every draft uses, declares
multiples of 32: without this plugin the two find no common block size and vLLM refuses a draft beside Kimi. The CPU
attention kernel does have a path for 16 (`vec16`). On CUDA nothing is changed.
"""

from typing import Any

from vllm.platforms import current_platform
from vllm.v1.attention.backends import cpu_attn

MLA_BLOCK = 16


def register() -> None:
    """Add 16 to the block sizes of the CPU attention backend; vLLM calls this in each of its processes."""
    if not current_platform.is_cpu():
        return
    backend = cpu_attn.CPUAttentionBackend
    declared = backend.get_supported_kernel_block_sizes
    if MLA_BLOCK in declared():
        return

    def with_mla_block(kv_cache_spec: Any = None) -> list[Any]:
        return [*declared(kv_cache_spec), MLA_BLOCK]

    backend.get_supported_kernel_block_sizes = staticmethod(with_mla_block)
