"""A real worker as a process of its own, beside a gateway of `tests.support.gateway_process`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.gateway_process import ROOT

END_S = 60


@contextmanager
def worker_process(folder: Path, redis_url: str, stages: str, gpus: str, cwd: Path = ROOT) -> Iterator[None]:
    """A worker of the store in `folder`, ended with the block.

    Args:
        stages: the package that its stages come from.
        gpus: as in `EYRIE_GPUS`.
        cwd: the clone that it runs from.
    """
    environment = os.environ | {
        "EYRIE_REDIS_URL": redis_url,
        "EYRIE_STORE_ROOT": str(folder / "store"),
        "EYRIE_EXCHANGE_ROOT": str(folder / "exchange"),
        "EYRIE_STAGE_PACKAGE": stages,
        "EYRIE_GPUS": gpus,
        "EYRIE_GPU_LOCK_FOLDER": str(folder / "gpu-locks"),
        "EYRIE_STOP_GRACE_S": "5",
    }
    with (folder / "workers.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.worker"], cwd=cwd, env=environment, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
