"""The child process of an inspection; the gateway starts it, reads its reports, and is not slowed down by it.

    python -m services.gateway.inspection.process DATASET_FOLDER WORK_FOLDER

In: `request.json` in the work folder, an `InspectionRequest`. Out: `result.json` beside it, an `Inspection`, when it
ends well; on its standard output a line of JSON (`Report`) every half a second. It ends when nobody reads these lines.
"""

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from services.gateway.inspection.documents import Failure, InspectionProgress, InspectionRequest, Report
from services.gateway.inspection.dry_run import DryRun
from shared.errors import ArtifactStoreError, UserError

REQUEST, RESULT = "request.json", "result.json"
BEAT_S = 0.5
NICENESS = 10
FIRST_TO_KILL = "500"  # of 1000: when memory runs out, this process goes and not the gateway


def main(dataset: Path, work: Path) -> None:
    """Inspect; what cannot work is reported as a failure, a defect ends the process with its traceback."""
    _step_back()
    request = InspectionRequest.model_validate_json((work / REQUEST).read_bytes())
    run = DryRun(request, dataset, work)
    threading.Thread(target=_beat, args=(run.progress,), daemon=True).start()
    try:
        (work / RESULT).write_bytes(run.inspect().model_dump_json().encode())
    except UserError as error:
        _report(run.progress, Failure(status=422, detail=str(error)))
    except ArtifactStoreError as error:
        _report(run.progress, Failure(status=503, detail=str(error)))
    except OSError as error:
        detail = f"the dataset cannot be read, or the inspection not be written: {error.strerror or error}"
        _report(run.progress, Failure(status=503, detail=detail))


def _step_back() -> None:
    """Leave processor and memory to the gateway where there is too little."""
    os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_KILL)


def _beat(progress: InspectionProgress) -> None:
    while True:
        try:
            _report(progress)
        except OSError:
            os._exit(1)  # the gateway is gone
        time.sleep(BEAT_S)


_output = threading.Lock()


def _report(progress: InspectionProgress, failure: Failure | None = None) -> None:
    line = json.dumps(Report(progress=progress, failure=failure).model_dump()) + "\n"
    with _output:
        sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
