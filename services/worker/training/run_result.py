"""Writes `result.json` at the end of a run: the stage believes it only together with the steps it names."""

import importlib.metadata
import resource
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from services.worker.training.row_books import Reached, row_accounting
from services.worker.training.row_index import learnable_rows
from services.worker.training.run_config import RESULT_NAME, EpochResult, RunResult

if TYPE_CHECKING:
    from services.worker.training.trainer import EyrieTrainer

LIBRARIES = ("speculators", "torch", "transformers", "datasets", "safetensors")
KIB = 1024  # ru_maxrss is in KiB on Linux


def write(trainer: "EyrieTrainer", best: EpochResult, last: EpochResult, reached: Reached) -> None:
    """Write the result, whole or not at all; `reached`: by row, whether it was trained or validated on."""
    position = trainer.position
    # All planned epochs are done here; with very many rows the plan's steps were an estimate.
    finished = position.epoch >= trainer.plan.epochs
    learnable = learnable_rows(trainer.run.dataset, trainer.run.train.pack_length)
    result = RunResult(
        steps=position.step,
        total_steps=position.step if finished else trainer.plan.total,
        resumed_from=trainer.resumed_from,
        best=best,
        last=last,
        parameters=count_parameters(trainer.draft),
        seconds=trainer.seconds_before + time.monotonic() - trainer.started,
        peak_gpu_bytes=torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
        peak_host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        tokens=position.tokens,
        samples=position.samples,
        rows=row_accounting(reached.tolist(), learnable["train"] + learnable["val"]),
        world_size=dist.get_world_size() if trainer.is_distributed else 1,
        versions={name: importlib.metadata.version(name) for name in LIBRARIES},
    )
    path = trainer.run.run / RESULT_NAME
    temporary = path.with_suffix(".tmp")
    temporary.write_text(result.model_dump_json(indent=1))
    temporary.replace(path)


def count_parameters(draft: torch.nn.Module) -> dict[str, int]:
    """Numbers of parameters: `total` (frozen verifier parts included), `trainable`, and `saved` in the export."""
    unsaved = set(getattr(draft, "_keys_to_ignore_on_save", None) or ())
    sizes = {name: parameter.numel() for name, parameter in draft.named_parameters()}
    trainable = sum(p.numel() for p in draft.parameters() if p.requires_grad)
    saved = sum(size for name, size in sizes.items() if name not in unsaved)
    return {"total": sum(sizes.values()), "trainable": trainable, "saved": saved}
