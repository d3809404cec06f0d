"""The GPUs that NVML, the driver's own library, finds. Out: `{"driver": ..., "gpus": [...]}` or `{"absent": why}`."""

import json
from typing import Any

try:
    import pynvml
except ModuleNotFoundError:
    pynvml = None


def look() -> dict[str, Any]:
    """What NVML says."""
    if pynvml is None:
        return {"absent": "nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return {"absent": "there is no NVIDIA driver"}
    except pynvml.NVMLError as error:
        return {"error": str(error)}
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return {
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "cuda": pynvml.nvmlSystemGetCudaDriverVersion() / 1000,
        "gpus": [_describe(handle) for handle in handles],
    }


def _describe(handle: object) -> dict[str, Any]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "id": pynvml.nvmlDeviceGetUUID(handle),
        "name": pynvml.nvmlDeviceGetName(handle),
        "memory_bytes": memory.total,
        "used_bytes": memory.used,
        "compute_capability": ".".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(handle))),
    }


if __name__ == "__main__":
    print(json.dumps(look()))
