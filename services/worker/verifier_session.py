"""The verifier of one job: an endpoint that is up (external), or one that the worker starts and stops (managed)."""

import contextlib
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from redis.exceptions import RedisError

from services.worker.gpus import LocalGpus, leased_gpus
from services.worker.run_control import RunControl
from services.worker.stage_inputs import StageInputs
from services.worker.supervision import JOB_VARIABLE
from services.worker.verifier_process import running_verifier
from services.worker.verifier_report import VerifierReport
from shared.errors import UserError
from shared.schemas.job import Progress, now
from shared.schemas.spec import JobSpec, ManagedVerifier
from shared.verifier_config import capture_layer_ids
from shared.verifier_settings import VerifierSettings


class VerifierSession:
    """Gives stages an endpoint; a managed verifier is started at the first call and lives until `close`, with its GPUs.

    As a context it closes at its end; a run that was fenced kills its verifier there, without a grace.
    """

    def __init__(self, spec: JobSpec, inputs: StageInputs, control: RunControl) -> None:
        self.spec, self.inputs, self.control = spec, inputs, control
        self._stack = ExitStack()
        self._url: str | None = spec.verifier.endpoint

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
        self._url = self.spec.verifier.endpoint

    def _start(self, managed: ManagedVerifier, exchange: Path, log_path: Path, gpus: LocalGpus) -> str:
        count = managed.tensor_parallel_size if gpus.ids or managed.tensor_parallel_size > 1 else 0
        where = "/verifier/managed/tensor_parallel_size"
        grant = self._stack.enter_context(leased_gpus(self.control, gpus, count, "verifier", where))
        config = self.inputs.verifier_config
        settings = VerifierSettings.model_validate(
            {
                **verifier_fields(self.spec, self.inputs.verifier_folder, on_gpu=bool(grant.real())),
                "mode": "capture",
                "layer_ids": capture_layer_ids(self.spec.capture.layer_ids, config.num_hidden_layers),
                "shared_folder": exchange,
                "max_model_len": managed.max_model_len,
                "max_num_seqs": managed.max_num_seqs,
            }
        )
        report = self._stack.enter_context(
            VerifierReport(settings, config, self.control.show_verifier, self.control.forget_verifier, gpus=grant.gpus)
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
        return url

    def _show(self, activity: str | None) -> None:
        """Tell whoever watches the job; the stage itself has not begun to count."""
        progress = Progress(done=0, total=0, unit="prompts", activity=activity, updated_at=now())
        with contextlib.suppress(RedisError):
            self.control.jobs.set_progress(self.control.job_id, self.control.token, progress)


def verifier_fields(spec: JobSpec, folder: Path, *, on_gpu: bool) -> dict[str, object]:
    """The settings of a verifier process that do not depend on what it is started for."""
    managed = spec.verifier.managed or ManagedVerifier()
    return {
        "model": str(folder),
        "revision": spec.verifier.revision,
        "served_model_name": served_model_name(spec),
        "device": "cuda" if on_gpu else "cpu",
        "tensor_parallel_size": managed.tensor_parallel_size,
        "gpu_memory_utilization": managed.gpu_memory_utilization,
        "trust_remote_code": managed.trust_remote_code,
        "reasoning_parser": managed.reasoning_parser,
        "tool_call_parser": managed.tool_call_parser,
    }


def served_model_name(spec: JobSpec) -> str:
    """The name a verifier is served under: the last part of its path or hub id."""
    return spec.verifier.model.rstrip("/").rsplit("/", 1)[-1]
