"""A stage's own process on a store that is full, log included."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.worker.stage_run import STORE_UNUSABLE, StageResult, StageRun
from shared.errors import StatusReason
from shared.schemas.job import Stage
from tests.support.stage_runs import job_spec

FULL = "def run(ctx):\n    open('/dev/full', 'w', buffering=1).write('x\\n')\n"
FULL_FOR_RUST = "def run(ctx):\n    raise RuntimeError('I/O error: No space left on device (os error 28)')\n"


def run_stage(tmp_path: Path, code: str, result: Path) -> int:
    package = tmp_path / "full_stages"
    package.mkdir()
    (package / "prepare.py").write_text(code)
    for name in ("out", "work", "exchange"):
        (tmp_path / name).mkdir()
    run = StageRun(
        job_id="job_1",
        stage=Stage.PREPARE,
        token="run_1",
        spec=job_spec(tmp_path),
        inputs={},
        out=tmp_path / "out",
        work=tmp_path / "work",
        previous=[],
        exchange=tmp_path / "exchange",
    )
    (tmp_path / "run.json").write_text(run.model_dump_json())
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    environment = {
        **os.environ,
        "EYRIE_STAGE_PACKAGE": "full_stages",
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
    }
    with open("/dev/full", "w") as log:
        command = [sys.executable, "-m", "services.worker.stage_main", str(tmp_path / "run.json"), str(result)]
        return subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=120, check=False).returncode


@pytest.mark.parametrize("code", [FULL, FULL_FOR_RUST])
def test_no_space_for_files_and_log_is_the_stores_fault(tmp_path: Path, code: str) -> None:
    run_stage(tmp_path, code, tmp_path / "result.json")
    result = StageResult.model_validate_json((tmp_path / "result.json").read_bytes())
    assert result.error is not None
    assert result.error.reason == StatusReason.ARTIFACT_STORE


def test_no_space_for_the_result_either_is_told_by_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert run_stage(tmp_path, FULL, tmp_path / "file" / "result.json") == STORE_UNUSABLE
