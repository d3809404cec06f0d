"""The exit status of several ranks, run by the real torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.worker.training.launch import RANKS, REPOSITORY

RANK = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    {end}
time.sleep(60)
"""


@pytest.mark.data
@pytest.mark.parametrize(("end", "status"), [("os.kill(os.getpid(), signal.SIGKILL)", 137), ("sys.exit(74)", 74)])
def test_the_status_says_how_the_first_rank_ended(tmp_path: Path, end: str, status: int) -> None:
    (tmp_path / "one_rank.py").write_text(RANK.format(end=end))
    command = [sys.executable, "-m", RANKS, "--standalone", "--nproc-per-node", "2", "-m", "one_rank"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(tmp_path)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stderr
