"""Refuses a job that asks for what no worker has: GPUs, their memory, or loggers, when it is submitted or planned."""

from collections.abc import Sequence

from shared.errors import UserError
from shared.estimate import draft_parameters, train_memory
from shared.gpu_wishes import able_workers, wanted_gpus
from shared.schemas.fleet import WorkerRecord
from shared.schemas.plan import Amount
from shared.schemas.spec import JobSpec
from shared.sizes import human_bytes
from shared.submission import FieldError, SubmissionError
from shared.verifier_config import VerifierConfig


def check_capacity(spec: JobSpec, workers: Sequence[WorkerRecord], config: VerifierConfig | None = None) -> None:
    """Compare what a job asks for with what the live workers have; where none lives, nothing is known.

    Args:
        config: of the verifier, whose shape the draft follows; None where it cannot be seen from here.

    Raises:
        SubmissionError: no live worker has so many GPUs, such large ones, or one of the loggers.
    """
    if errors := [*_gpu_errors(spec, workers), *_memory_errors(spec, workers, config), *_logger_errors(spec, workers)]:
        raise SubmissionError(errors)


def memory_notes(spec: JobSpec, workers: Sequence[WorkerRecord], config: VerifierConfig) -> list[str]:
    """Say where a training will probably not fit on any live worker's GPUs, though it may."""
    needed, there_is = _train_memory(spec, config), _largest_memory(spec, workers)
    if needed is None or there_is is None or not needed.least <= there_is < needed.likely:
        return []
    sizes = f"{human_bytes(needed.likely)} on each GPU and the largest one here has {human_bytes(there_is)}"
    return [f"training takes about {sizes}: if it runs out, lower train.pack_length"]


def _gpu_errors(spec: JobSpec, workers: Sequence[WorkerRecord]) -> list[FieldError]:
    if not workers or able_workers(spec, workers):
        return []
    largest = max(workers, key=lambda worker: len(worker.gpus))
    there_is = f"the largest of {len(workers)} live workers, on {largest.host}, has {len(largest.gpus)}"
    hint = "ask for at most that many" if largest.gpus else "ask for 0 to run on the CPU"
    return [
        FieldError(pointer, f"{count} GPUs are asked for and {there_is}: {hint}, or start a worker with more")
        for pointer, count in wanted_gpus(spec).items()
        if count > len(largest.gpus)
    ]


def _memory_errors(spec: JobSpec, workers: Sequence[WorkerRecord], config: VerifierConfig | None) -> list[FieldError]:
    needed, there_is = _train_memory(spec, config), _largest_memory(spec, workers)
    if needed is None or there_is is None or needed.least <= there_is:
        return []
    message = (
        f"weights and optimizer of this draft take at least {human_bytes(needed.least)} on each GPU that trains, and "
        f"the largest GPU of the live workers has {human_bytes(there_is)}: ask for a smaller draft (draft.num_layers, "
        "draft.intermediate_size, draft.vocab_size), or start a worker with larger GPUs"
    )
    return [FieldError("/draft", message)]


def _train_memory(spec: JobSpec, config: VerifierConfig | None) -> Amount | None:
    """What each GPU that trains needs; None where none does, or the shape is not known or not possible."""
    if config is None or not spec.train.gpus:
        return None
    try:
        return train_memory(spec, config, draft_parameters(spec.draft, config, spec.capture.layer_ids))
    except UserError:
        return None  # another check says what is wrong with it


def _largest_memory(spec: JobSpec, workers: Sequence[WorkerRecord]) -> int | None:
    """Memory of the largest GPU on which the job could train; None where that is not known, as for faked ones."""
    gpus = [gpu.memory_bytes for worker in able_workers(spec, workers) for gpu in worker.gpus]
    known = [memory for memory in gpus if memory is not None]
    return max(known) if known and len(known) == len(gpus) else None


def _logger_errors(spec: JobSpec, workers: Sequence[WorkerRecord]) -> list[FieldError]:
    if not workers or any(worker.loggers is None for worker in workers):
        return []
    there = {name for worker in workers for name in worker.loggers or []}
    return [
        FieldError(
            f"/integrations/{place}",
            f"the logger {name} is installed on none of the {len(workers)} live workers: leave it out, or install it "
            f"where they run (pip install {name})",
        )
        for place, name in enumerate(spec.integrations or [])
        if name not in there
    ]
