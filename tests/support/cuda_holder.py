"""A process that has a GPU and does not let go: `python tests/support/cuda_holder.py READY`.

It allocates a GiB on the first GPU that it may see, through the driver's own library, makes the file READY, and stays
for five minutes whatever SIGTERM says.
"""

import ctypes
import signal
import sys
import time
from pathlib import Path

BYTES = 1024**3


def allocate() -> None:
    """Make a context on the first visible GPU and take memory there."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    calls = (
        ("cuInit", 0),
        ("cuDeviceGet", ctypes.byref(device), 0),
        ("cuDevicePrimaryCtxRetain", ctypes.byref(context), device),
        ("cuCtxSetCurrent", context),
        ("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES)),
    )
    for name, *arguments in calls:
        if code := getattr(cuda, name)(*arguments):
            sys.exit(f"{name} gave {code}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    allocate()
    Path(sys.argv[1]).touch()
    time.sleep(300)
