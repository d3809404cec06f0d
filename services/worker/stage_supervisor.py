"""Runs one stage as a child process and watches over it until it and everything it started is gone."""

import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from services.worker.gpus import GpuGrant
from services.worker.integrations import loggers_of, worker_variables
from services.worker.progress_meter import ProgressMeter
from services.worker.run_control import RunControl
from services.worker.stage_clock import StageClock
from services.worker.stage_context import EVENTS_FD_VARIABLE
from services.worker.stage_run import STORE_UNUSABLE, StageResult, StageRun
from services.worker.supervision import JOB_VARIABLE, GuardedProcess, end_tree, marked_environment
from shared.errors import StageTimeoutError, StatusReason
from shared.figures import Tally
from shared.job_store import Fenced
from shared.schemas.fleet import VerifierState
from shared.schemas.job import ErrorDetail, Progress, Stage

log = logging.getLogger(__name__)
POLL_S = 0.2
LEFTOVER_GRACE_S = 5.0

EventSink = Callable[[str, dict[str, Any]], None]


class StageSupervisor:
    """One stage run: spawn, relay, watch, end. `watch` is called often while it runs; what it raises ends the stage.

    Its events bear `number`, which of the job's runs of the stage it is, as `attempt`.
    """

    def __init__(
        self,
        run: StageRun,
        folder: Path,
        log_path: Path,
        control: RunControl,
        grace_s: float,
        watch: Callable[[], None] = lambda: None,
        reached: Progress | None = None,
        number: int = 1,
    ) -> None:
        self.run_document, self.folder, self.log_path = run, folder, log_path
        self.control, self.grace_s, self.watch = control, grace_s, watch
        self.token, self.number = f"{run.token}.{run.stage}", number
        self.meter = ProgressMeter(reached)
        self.metrics: dict[str, float] = {}
        self._verifiers: set[str] = set()
        self._gpus: list[str] = []

    def run(self, clock: StageClock, grant: GpuGrant) -> StageResult:
        """Run the stage to its end.

        Args:
            clock: the time that it may take.
            grant: the GPUs that it has; their locks pass to the stage's processes.

        Raises:
            Interrupted, Fenced: from the run's control; the process tree is gone by then.
            StageTimeoutError: the limit was reached; likewise.
        """
        self.clock, self._gpus = clock, grant.gpus
        result_path = self.folder / "result.json"
        run_path = self.folder / "run.json"
        run_path.write_text(self.run_document.model_dump_json(), encoding="utf-8")
        read_end, write_end = os.pipe()
        with self.log_path.open("ab") as log_file:
            child = GuardedProcess.start(
                [sys.executable, "-m", "services.worker.stage_main", str(run_path), str(result_path)],
                environment=self._environment(grant, write_end),
                output=log_file,
                grace_s=self.grace_s,
                keep=(write_end, *grant.locks),
            )
        os.close(write_end)
        grant.hand_over()
        try:
            self._watch(child, read_end)
        except Fenced:
            child.end(0.0)  # another attempt runs: nothing of this one may go on beside it
            raise
        except BaseException:
            with self.control.kept_alive():
                child.end(self.grace_s)
            raise
        finally:
            with self.control.kept_alive():
                child.process.wait()
                end_tree(self.token, None, LEFTOVER_GRACE_S)
            for verifier in self._verifiers:
                self.control.forget_verifier(verifier)
        return _read_result(result_path, child.process.returncode, self.run_document)

    def _environment(self, grant: GpuGrant, events: int) -> dict[str, str]:
        run = self.run_document
        loggers = worker_variables(loggers_of(run.spec)[0], os.environ) if run.stage == Stage.TRAIN else {}
        own = {JOB_VARIABLE: run.job_id, EVENTS_FD_VARIABLE: str(events), **loggers}
        return marked_environment(self.token, {**own, **grant.environment()})

    def _watch(self, child: GuardedProcess, read_end: int) -> None:
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=_read_events, args=(read_end, events), daemon=True).start()
        open_pipe = True
        while open_pipe or child.process.poll() is None:
            try:
                event = events.get(timeout=POLL_S)
                open_pipe = open_pipe and event is not None
                if event is not None:
                    self._relay(event)
            except queue.Empty:
                open_pipe = open_pipe and child.process.poll() is None
            self.control.check()
            self.watch()
            if self.clock.is_over():
                raise StageTimeoutError(
                    f"the stage did not end within its limit of {self.clock.limit_s:g} s",
                    where=str(self.run_document.stage),
                    hint=f"raise limits.{self.run_document.stage}_s",
                )

    def _relay(self, event: dict[str, Any]) -> None:
        jobs, job_id = self.control.jobs, self.run_document.job_id
        stage, token = str(self.run_document.stage), self.run_document.token
        self.clock.follow(event)
        try:
            match event.get("type"):
                case "progress":
                    progress = self.meter.measure(event)
                    progress.metrics = {**self.metrics, **progress.metrics}
                    jobs.set_progress(job_id, token, progress)
                case "metric":
                    self.metrics.update({k: float(v) for k, v in event["values"].items()})
                    data = {"stage": stage, "attempt": self.number, "step": event["step"], **event["values"]}
                    jobs.append_event(job_id, "metric", data, token=token)
                case "figures":
                    Tally(event["amounts"]).send(jobs.redis)
                case "verifier":
                    self._show_verifier(VerifierState.model_validate(event["state"]))
                case "verifier_gone":
                    self.control.forget_verifier(str(event["id"]))
                case str(kind):
                    jobs.append_event(job_id, kind, {**event, "stage": stage, "attempt": self.number}, token=token)
        except RedisError as error:
            log.warning("job %s: an event of %s was not shown: %s", job_id, stage, error)

    def _show_verifier(self, state: VerifierState) -> None:
        """Tell the fleet of a verifier that the stage has started itself."""
        self._verifiers.add(state.id)
        self.control.show_verifier(state.model_copy(update={"stage": self.run_document.stage, "gpus": self._gpus}))


def _read_events(read_end: int, events: "queue.Queue[dict[str, Any] | None]") -> None:
    with os.fdopen(read_end, encoding="utf-8") as stream:
        for line in stream:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                events.put(event)
    events.put(None)


def _read_result(path: Path, returncode: int, run: StageRun) -> StageResult:
    if path.is_file():
        return StageResult.model_validate_json(path.read_bytes())
    if returncode == STORE_UNUSABLE:
        reason, message = StatusReason.ARTIFACT_STORE, "the stage could not write its files"
    elif returncode == -9:
        reason, message = StatusReason.OOM_HOST, "the stage's process was killed, most likely for lack of memory"
    else:
        reason, message = StatusReason.INTERNAL, f"the stage's process ended with code {returncode} and left no result"
    error = ErrorDetail(reason=reason, message=message, where=str(run.stage), hint="the stage's log has the details")
    return StageResult(error=error, seconds=0)
