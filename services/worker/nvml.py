"""GPUs as NVML, the driver's own library, knows them: which there are, and whether one is empty.

NVML is opened for each question and closed again: the answer is the driver's of that moment, and nothing of it is
inherited by a forked work horse. No CUDA context is made.
"""

import contextlib
from collections.abc import Iterator

from shared.schemas.fleet import GpuInfo

try:
    import pynvml
except ModuleNotFoundError:  # the `worker` extra brings it; a worker without it sees no GPUs
    pynvml = None

# A CUDA context alone takes more (300 to 600 MiB), an unused GPU less (0 to 4 MiB on an H200, reserved memory not
# counted). Inside a container NVML does not list the processes of another one; its memory shows.
EMPTY_BELOW_BYTES = 200 * 1024**2


def list_gpus() -> list[GpuInfo]:
    """The GPUs that this process sees, in NVML's order (by PCI bus); none where there is no driver."""
    with _nvml() as ready:
        if not ready:
            return []
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [_describe(handle) for handle in handles]


def find_gpu(uuid: str) -> GpuInfo | None:
    """The GPU, or the part of one (MIG), with this UUID."""
    with _nvml() as ready:
        if not ready:
            return None
        try:
            return _describe(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError:
            return None


def gpu_load(uuid: str) -> tuple[int, float | None] | None:
    """Bytes in use on a GPU, and the part of the time that it was busy (None where the driver does not say that).

    None without an answer.
    """
    with _nvml() as ready:
        if not ready:
            return None
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            used = _used_bytes(handle)
        except pynvml.NVMLError:
            return None
        try:
            return used, pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except pynvml.NVMLError:
            return used, None


def is_empty(uuid: str) -> bool:
    """Tell whether no process has the GPU; False as well when NVML cannot say."""
    with _nvml() as ready:
        if not ready:
            return False
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            return not processes and _used_bytes(handle) < EMPTY_BELOW_BYTES
        except pynvml.NVMLError:
            return False


def _describe(handle: object) -> GpuInfo:
    return GpuInfo(
        id=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
    )


def _used_bytes(handle: object) -> int:
    try:  # without what the driver reserves for itself
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
    except pynvml.NVMLError:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


@contextlib.contextmanager
def _nvml() -> Iterator[bool]:
    if pynvml is None:
        yield False
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()
