"""vLLM's hidden-state connector, made to work on CPUs too.

vLLM loads `EyrieHiddenStatesConnector` by module path (`kv_connector_module_path`). In: the states that the forward
pass left in the cache-only layer. Out: one safetensors file a request, `hidden_states` [S, L, H] in the model's dtype
and `token_ids` [S].

The parent copies states with a CUDA stream, pinned memory and a CUDA event, and ends the engine on a CPU. Here only
that one step is replaced, and only on CPU; request bookkeeping, locks and the writer threads are the parent's.
"""

import fcntl
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
    extract_from_kv_cache,
)


class CopyFinished:
    """Stands for the CUDA event of the parent: a copy on a CPU is finished when it returns."""

    def query(self) -> bool:
        """Whether the copy is finished."""
        return True

    def synchronize(self) -> None:
        """Wait for the copy."""


class EyrieHiddenStatesConnector(ExampleHiddenStatesConnector):
    """Hands the states of each finished request to a writer thread."""

    def _submit_async_write(self, pending: PendingSave) -> None:
        """Copy the states out of the cache, before its blocks are freed, and have a thread write them.

        The file's lock was taken by the parent when the request was first scheduled and is given up after the write.
        """
        if self._kv_cache is None or self._kv_cache.device.type != "cpu":
            super()._submit_async_write(pending)
            return
        if not self._is_tp_rank_zero:
            return
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).flatten()
        count = pending.token_ids.shape[0]
        tensors = {
            # Indexing copies; `slots[:count]` is what the request used of its last block.
            "hidden_states": extract_from_kv_cache(self._kv_cache, slots[:count], count).contiguous(),
            "token_ids": pending.token_ids.clone(),
        }
        finished = CopyFinished()
        future = self._executor.submit(_write, tensors, pending.filename, self._take_lock(pending))
        self._req_copy_events[pending.req_id] = finished
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))

    def _take_lock(self, pending: PendingSave) -> int | None:
        held: int | None = self._lock_fds.pop(pending.req_id, None)
        if held is None and self.use_lock:
            held = os.open(f"{pending.filename}.lock", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
            fcntl.flock(held, fcntl.LOCK_EX)
        return held


def _write(tensors: dict[str, Any], filename: str, lock: int | None) -> None:
    """Write under another name and rename, so that a reader that ignores the lock meets no half file either."""
    path = Path(filename)
    partial_path = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial_path)
        partial_path.replace(path)
    except OSError:
        partial_path.unlink(missing_ok=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)  # gives the lock up
