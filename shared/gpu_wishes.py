"""How many GPUs a job asks for, and which live workers have so many."""

from collections.abc import Iterable

from shared.schemas.fleet import WorkerRecord
from shared.schemas.spec import JobSpec


def wanted_gpus(spec: JobSpec) -> dict[str, int]:
    """The counts that a job document asks for, by the JSON pointer of the field that asks."""
    wanted = {"/train/gpus": spec.train.gpus, "/evaluate/gpus": spec.evaluate.gpus}
    managed = spec.verifier.managed
    if managed is not None and spec.verifier.endpoint is None and managed.tensor_parallel_size > 1:
        wanted["/verifier/managed/tensor_parallel_size"] = managed.tensor_parallel_size
    return wanted


def able_workers(spec: JobSpec, workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
    """Those of the workers that see enough GPUs for every stage of a job."""
    most = max(wanted_gpus(spec).values())
    return [worker for worker in workers if len(worker.gpus) >= most]
