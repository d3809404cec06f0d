"""What the worker adds to RQ's, without Redis."""

import subprocess
import sys

from services.worker.main import JobWorker
from shared.queue import JobQueue


def test_a_sigterm_that_comes_just_as_the_job_ends_is_no_error() -> None:
    worker = JobWorker([], connection=JobQueue("redis://127.0.0.1:1/0").redis, name="w", prepare_for_work=False)
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    worker.pid, worker._horse_pid = 1, ended.pid
    worker.handle_warm_shutdown_request()
    assert worker.told_to_stop
