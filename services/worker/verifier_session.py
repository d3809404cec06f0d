"""The verifier of one job: an endpoint that is up (external), or one that the worker starts and stops (managed)."""

import contextlib
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from redis.exceptions import RedisError

from services.worker.gpus import LocalGpus, leased_gpus
from services.worker.run_control import RunControl
from services.worker.stage_inputs import StageInputs
from services.worker.supervision import JOB_VARIABLE
from services.worker.verifier_process import running_verifier
from services.worker.verifier_report import VerifierReport
from shared.errors import UserError
from shared.job_store import JobNotFound
from shared.schemas.job import Progress, StageStatus, now
from shared.schemas.spec import JobSpec, ManagedVerifier
from shared.verifier_config import capture_layer_ids
from shared.verifier_settings import VerifierSettings

HEALTH_TIMEOUT_S = 30.0


class VerifierSession:
    """Gives stages an endpoint; a managed verifier is started at the first call and lives until `close`, with its GPUs.

    As a context it closes at its end; a run that was fenced kills its verifier there, without a grace.
    """

    def __init__(self, spec: JobSpec, inputs: StageInputs, control: RunControl) -> None:
        self.spec, self.inputs, self.control = spec, inputs, control
        self._stack = ExitStack()
        self._url: str | None = spec.verifier.endpoint
        self._served: VerifierSettings | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def endpoint(self, exchange: Path, log_path: Path, gpus: LocalGpus) -> str:
        """Base URL of the verifier, started if need be.

        Args:
            exchange: folder shared with the verifier.
            log_path: for a managed verifier's output.
            gpus: this worker's GPUs.
        """
        if self._url is None:
            managed = self.spec.verifier.managed
            if managed is None:
                raise UserError(
                    "the job names no verifier endpoint and none is managed",
                    where="/verifier",
                    hint="give verifier.endpoint, or verifier.managed to have the worker start it",
                )
            self._url = self._start(managed, exchange, log_path, gpus)
        return self._url

    def close(self) -> None:
        """Stop a managed verifier and give its GPUs back; harmless for an external one."""
        self._stack.close()
        self._url, self._served = self.spec.verifier.endpoint, None

    def has_started(self) -> bool:
        """Whether a managed verifier runs now."""
        return self._served is not None

    def answers(self) -> bool:
        """Whether the managed verifier is as well as it was."""
        try:
            answer = httpx.get(f"{self._url}/health", timeout=HEALTH_TIMEOUT_S, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK

    def serves(self, spec: JobSpec, inputs: StageInputs) -> bool:
        """Whether the managed verifier that runs now is the very one that another job would start: its files may have
        been replaced since it was loaded."""
        served, managed = self._served, spec.verifier.managed
        if served is None or managed is None or not inputs.has_verifier_of(self.inputs):
            return False
        wanted = capture_settings(spec, managed, inputs, served.shared_folder, on_gpu=served.device == "cuda")
        return wanted == served

    def _start(self, managed: ManagedVerifier, exchange: Path, log_path: Path, gpus: LocalGpus) -> str:
        count = managed.tensor_parallel_size if gpus.ids or managed.tensor_parallel_size > 1 else 0
        where = "/verifier/managed/tensor_parallel_size"
        grant = self._stack.enter_context(leased_gpus(self.control, gpus, count, "verifier", where))
        settings = capture_settings(self.spec, managed, self.inputs, exchange, on_gpu=bool(grant.real()))
        report = self._stack.enter_context(
            VerifierReport(
                settings,
                self.inputs.verifier_config,
                self.control.show_verifier,
                self.control.forget_verifier,
                gpus=grant.gpus,
            )
        )
        verifier = running_verifier(
            settings,
            mark=f"{self.control.token}.verifier",
            log_path=log_path,
            timeout_s=managed.start_timeout_s,
            tick=self.control.check,
            loading=report.loading,
            ending=self.control.kept_alive,
            environment={JOB_VARIABLE: self.control.job_id, **grant.environment()},
            locks=grant.locks,
        )
        self._show("starting vLLM")
        url = self._stack.enter_context(verifier)
        report.ready(url)
        self._show(None)
        grant.hand_over()
        self._served = settings
        return url

    def _show(self, activity: str | None) -> None:
        """Tell whoever watches the job; the stage itself has not begun to count, and shows what was reached before."""
        jobs, job_id = self.control.jobs, self.control.job_id
        with contextlib.suppress(RedisError, JobNotFound):
            running = [stage.progress for stage in jobs.get(job_id).stages if stage.status == StageStatus.RUNNING]
            reached = next(filter(None, running), Progress(done=0, total=0, unit="prompts", updated_at=now()))
            shown = reached.model_copy(update={"activity": activity, "updated_at": now()})
            jobs.set_progress(job_id, self.control.token, shown)


class LentVerifier(VerifierSession):
    """The managed verifier of another run, which stops it when it is done."""

    def __init__(self, lender: VerifierSession, spec: JobSpec, inputs: StageInputs, control: RunControl) -> None:
        super().__init__(spec, inputs, control)
        self._lender = lender

    def endpoint(self, exchange: Path, log_path: Path, gpus: LocalGpus) -> str:
        """Base URL of what the lender has started."""
        return self._lender.endpoint(exchange, log_path, gpus)


def capture_settings(
    spec: JobSpec, managed: ManagedVerifier, inputs: StageInputs, exchange: Path, *, on_gpu: bool
) -> VerifierSettings:
    """How a job's managed verifier is started for its data; equal settings can share one."""
    return VerifierSettings.model_validate(
        {
            **verifier_fields(spec, inputs.verifier_folder, on_gpu=on_gpu),
            "mode": "capture",
            "layer_ids": capture_layer_ids(spec.capture.layer_ids, inputs.verifier_config.num_hidden_layers),
            "shared_folder": exchange,
            "max_model_len": managed.max_model_len,
            "max_num_seqs": managed.max_num_seqs,
        }
    )


def verifier_fields(spec: JobSpec, folder: Path, *, on_gpu: bool) -> dict[str, object]:
    """The settings of a verifier process that do not depend on what it is started for.

    Faked GPUs are leased as they are asked for; what serves is one process on the CPU.
    """
    managed = spec.verifier.managed or ManagedVerifier()
    return {
        "model": str(folder),
        "revision": spec.verifier.revision,
        "served_model_name": served_model_name(spec),
        "device": "cuda" if on_gpu else "cpu",
        "tensor_parallel_size": managed.tensor_parallel_size if on_gpu else 1,
        "gpu_memory_utilization": managed.gpu_memory_utilization,
        "trust_remote_code": managed.trust_remote_code,
        "reasoning_parser": managed.reasoning_parser,
        "tool_call_parser": managed.tool_call_parser,
    }


def served_model_name(spec: JobSpec) -> str:
    """The name a verifier is served under: the last part of its path or hub id."""
    return spec.verifier.model.rstrip("/").rsplit("/", 1)[-1]
