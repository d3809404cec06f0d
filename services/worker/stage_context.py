"""What a stage gets and how it reports: the one interface between the supervisor and the seven stages.

A stage runs in a child process of its own. It reads its inputs' folders, writes what shall be published under
`out`, keeps what only a later attempt may use under `work`, and reports through `report`. It never speaks to Redis.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from shared.schemas.accounting import Accounting
from shared.schemas.fleet import VerifierState
from shared.schemas.spec import JobSpec

EVENTS_FD_VARIABLE = "EYRIE_EVENTS_FD"
MIN_PROGRESS_INTERVAL_S = 0.25


@dataclass(frozen=True)
class StageContext:
    """One stage run.

    Attributes:
        job_id, stage, token: identity; the token fences the attempt.
        spec: the resolved job document.
        inputs: the published `out` folder of each earlier stage, by stage name; plus `suite:NAME` for the prepared
            prompts of evaluation suites and `compare` for another draft's folder, where the job names them.
        out: the attempt's own folder; all files in it are hashed and published when the stage returns.
        work: the attempt's private folder; not published, but later attempts see it in `previous`.
        previous: `work` folders of earlier attempts at the same stage key, newest first; read only.
        siblings: folders of other runs of this stage, finished (`out`) or not (`work`), whose rows are equal wherever
            their content is, newest first; read only.
        exchange: folder that verifier and worker share for hidden states.
        endpoint: base URL of the verifier, for stages that need it.
        served_model: model name to send to the verifier.
        gpus: leased GPUs (UUIDs or indices); empty on CPU.
        gpu_verifier: whether the verifier runs on GPUs, as far as this worker can tell.
        report: where progress, metrics and warnings go.
        input_digests: SHA-256 of each input, by name, as in the stage's manifest; `verifier` is the fingerprint of its
            configuration, tokenizer and weights.
        books: what became of all items in the earlier stages, by stage name.
    """

    job_id: str
    stage: str
    token: str
    spec: JobSpec
    inputs: Mapping[str, Path]
    out: Path
    work: Path
    previous: tuple[Path, ...]
    exchange: Path
    endpoint: str | None
    served_model: str | None
    gpus: tuple[str, ...]
    gpu_verifier: bool
    report: "Reporter"
    input_digests: Mapping[str, str] = field(default_factory=dict)
    books: Mapping[str, Accounting] = field(default_factory=dict)
    siblings: tuple[Path, ...] = ()


@dataclass
class Reporter:
    """Writes one JSON object a line to the supervisor's pipe (or to any text stream in tests)."""

    stream: TextIO
    _last_progress: float = field(default=0.0, init=False)

    @classmethod
    def from_environment(cls) -> "Reporter":
        """Open the descriptor that the supervisor passed, or /dev/null when a stage is run by hand."""
        fd = os.environ.get(EVENTS_FD_VARIABLE)
        return cls(os.fdopen(int(fd), "w", buffering=1) if fd else open(os.devnull, "w"))

    def progress(self, done: float, total: float, unit: str, **extra: float | str | None) -> None:
        """Say that `done` of `total` `unit`s are finished; throttled, the last one (`done >= total`) always sent."""
        now = time.monotonic()
        if done < total and now - self._last_progress < MIN_PROGRESS_INTERVAL_S:
            return
        self._last_progress = now
        self._send({"type": "progress", "done": done, "total": total, "unit": unit, **extra})

    def metric(self, step: int, values: Mapping[str, float]) -> None:
        """Report named numbers at an optimizer step (or epoch) of the stage."""
        self._send({"type": "metric", "step": step, "values": dict(values)})

    def warn(self, message: str) -> None:
        """Report something that a person should know although the stage goes on."""
        self._send({"type": "warning", "message": message})

    def figures(self, amounts: Mapping[str, float]) -> None:
        """Add to the service's running totals (`shared.figures`)."""
        self._send({"type": "figures", "amounts": dict(amounts)})

    def verifier(self, state: VerifierState) -> None:
        """Say what a verifier is doing that this stage has started."""
        self._send({"type": "verifier", "state": state.model_dump(mode="json")})

    def verifier_gone(self, verifier_id: str) -> None:
        """Say that it was ended."""
        self._send({"type": "verifier_gone", "id": verifier_id})

    def event(self, kind: str, **fields: Any) -> None:
        """Report a stage-specific event, such as a checkpoint."""
        self._send({"type": kind, **fields})

    def _send(self, record: Mapping[str, Any]) -> None:
        self.stream.write(json.dumps(record, allow_nan=False, default=str) + "\n")
        self.stream.flush()
