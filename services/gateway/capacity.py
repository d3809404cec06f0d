"""Refuses a job that asks for more GPUs than any worker has, when it is submitted or planned."""

from collections.abc import Sequence

from shared.gpu_wishes import able_workers, wanted_gpus
from shared.schemas.fleet import WorkerRecord
from shared.schemas.spec import JobSpec
from shared.submission import FieldError, SubmissionError


def check_capacity(spec: JobSpec, workers: Sequence[WorkerRecord]) -> None:
    """Compare what a job asks for with what the live workers have; where none lives, nothing is known.

    Raises:
        SubmissionError: no live worker has so many.
    """
    if not workers or able_workers(spec, workers):
        return
    largest = max(workers, key=lambda worker: len(worker.gpus))
    there_is = f"the largest of {len(workers)} live workers, on {largest.host}, has {len(largest.gpus)}"
    hint = "ask for at most that many" if largest.gpus else "ask for 0 to run on the CPU"
    raise SubmissionError(
        [
            FieldError(pointer, f"{count} GPUs are asked for and {there_is}: {hint}, or start a worker with more")
            for pointer, count in wanted_gpus(spec).items()
            if count > len(largest.gpus)
        ]
    )
