"""A chaos run ends with everything that it started, and says what did not end by itself."""

import subprocess
import sys

from tests.support.chaos import site as chaos
from tests.support.chaos.site import ChaosSite
from tests.support.verifier_stub import VerifierStub

DEAF = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
CHILD = f"{DEAF}; time.sleep(300)"
WORKER = f"{DEAF}; subprocess.run([sys.executable, '-S', '-c', {CHILD!r}])"


def test_a_worker_that_does_not_end_is_told_with_all_that_it_left(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos, "END_S", 1.0)
    (tmp_path / "exchange").mkdir()
    with VerifierStub(tmp_path / "exchange") as stub:
        site = ChaosSite(tmp_path, stub)
        for code in (WORKER, CHILD, "print('up', flush=True)"):
            worker = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
            assert worker.stdout.readline() == b"up\n"
            site.workers.append(worker)
        site.workers[0].stdout.readline()  # its child is up
        left = site.close()
    assert len(left) == 3, "one worker with its child, and one alone"
    assert all("SIG_IGN" in line for line in left)
    for worker in site.workers:
        assert worker.poll() is not None
        worker.stdout.close()
