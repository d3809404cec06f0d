"""A stage's own process: `python -m services.worker.stage_main RUN.json RESULT.json`.

Verifies the stage's inputs, runs it, checks its books, then hashes what it left in its `out` folder and writes the
result. It holds no Redis connection and publishes nothing: that is the supervisor's. SIGTERM ends it as `SystemExit`,
so that stages can clean up.
"""

import contextlib
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from services.worker.books import check_books, read_books
from services.worker.input_check import DamagedInput, check_inputs
from services.worker.salvage import salvage
from services.worker.stage_context import Reporter, StageContext
from services.worker.stage_run import STORE_UNUSABLE, StageResult, StageRun
from services.worker.supervision import die_with_parent
from services.worker.unexpected import unexpected
from shared.artifact_store import file_sha256
from shared.errors import ArtifactStoreError, EyrieError
from shared.schemas.job import ErrorDetail
from shared.schemas.manifest import FileEntry, Manifest

TERMINATED = 128 + signal.SIGTERM
STAGE_PACKAGE_VARIABLE = "EYRIE_STAGE_PACKAGE"  # set by tests alone, which bring light stand-ins for heavy stages
STAGE_PACKAGE = "services.worker.stages"


def main(arguments: list[str]) -> int:
    """Run the stage that `arguments[0]` describes; the result goes to `arguments[1]`."""
    die_with_parent()
    signal.signal(signal.SIGTERM, _terminate)
    run = StageRun.model_validate_json(Path(arguments[0]).read_bytes())
    started = time.monotonic()
    try:
        summary = _run_stage(run)
        result = StageResult(files=hash_files(run.out), summary=summary, seconds=time.monotonic() - started)
    except DamagedInput as damage:
        detail = ErrorDetail.from_error(damage)
        result = StageResult(error=detail, damaged_inputs=[damage.name], seconds=time.monotonic() - started)
    except EyrieError as error:
        result = StageResult(error=ErrorDetail.from_error(error), seconds=time.monotonic() - started)
    except OSError as error:
        _log_exception()
        detail = ErrorDetail.from_error(ArtifactStoreError(str(error), where=str(run.stage)))
        result = StageResult(error=detail, seconds=time.monotonic() - started)
    except Exception as error:
        _log_exception()
        result = StageResult(error=unexpected(error, str(run.stage)), seconds=time.monotonic() - started)
    try:
        _write_whole(Path(arguments[1]), result.model_dump_json())
    except OSError:
        _log_exception()
        return STORE_UNUSABLE
    return 0 if result.error is None else 1


def hash_files(out: Path) -> list[FileEntry]:
    """List every file below `out` with size and SHA-256, sorted by path."""
    paths = sorted(path for path in out.rglob("*") if path.is_file())
    return [
        FileEntry(path=path.relative_to(out).as_posix(), size=path.stat().st_size, sha256=file_sha256(path))
        for path in paths
    ]


def _run_stage(run: StageRun) -> dict[str, Any]:
    upstream = check_inputs(run)
    run.previous = [*run.previous, *salvage(run)]
    package = os.environ.get(STAGE_PACKAGE_VARIABLE, STAGE_PACKAGE)
    summary: dict[str, Any] = importlib.import_module(f"{package}.{run.stage}").run(_context(run, upstream))
    check_books(run.stage, summary, upstream)
    return summary


def _log_exception() -> None:
    with contextlib.suppress(OSError):  # the log lies in the store, which may be full
        traceback.print_exc()


def _context(run: StageRun, upstream: Mapping[str, Manifest]) -> StageContext:
    return StageContext(
        job_id=run.job_id,
        stage=run.stage,
        token=run.token,
        spec=run.spec,
        inputs=run.inputs,
        out=run.out,
        work=run.work,
        previous=tuple(run.previous),
        siblings=tuple(run.siblings),
        exchange=run.exchange,
        endpoint=run.endpoint,
        served_model=run.served_model,
        gpus=tuple(run.gpus),
        gpu_verifier=run.gpu_verifier,
        report=Reporter.from_environment(),
        input_digests=run.input_digests,
        books=read_books(upstream),
    )


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
