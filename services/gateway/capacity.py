"""Refuses a job that asks for what no worker has, GPUs or loggers, when it is submitted or planned."""

from collections.abc import Sequence

from shared.gpu_wishes import able_workers, wanted_gpus
from shared.schemas.fleet import WorkerRecord
from shared.schemas.spec import JobSpec
from shared.submission import FieldError, SubmissionError


def check_capacity(spec: JobSpec, workers: Sequence[WorkerRecord]) -> None:
    """Compare what a job asks for with what the live workers have; where none lives, nothing is known.

    Raises:
        SubmissionError: no live worker has so many GPUs, or one of the loggers.
    """
    if errors := [*_gpu_errors(spec, workers), *_logger_errors(spec, workers)]:
        raise SubmissionError(errors)


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
