"""What the stage tells the trainer process, and what the trainer tells the stage: one JSON file each way, plus events.

The stage writes `config.json`; the trainer appends to `events.jsonl` while it works and leaves `result.json` when it is
done. All of them lie in the run folder, which is private to the attempt.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from shared.schemas.accounting import Accounting
from shared.schemas.spec import DraftSpec, TrainSpec

CONFIG_NAME = "config.json"
EVENTS_NAME = "events.jsonl"
METRICS_NAME = "metrics.jsonl"
RESULT_NAME = "result.json"
DRAFT_CONFIG_NAME = "draft_config.json"
EXPORT_NAME = "export"
RESUME_NAME = "resume"
LOGS_NAME = "logs"


class RunConfig(BaseModel):
    """One training run, resolved: nothing is left to a default of the library's.

    Attributes:
        dataset: folder in speculators' layout, training rows first.
        data: SHA-256 over the rows' index, the vocabulary and the verifier's configuration.
        verifier: folder of the verifier (config and weights).
        verifier_name: what the published config calls the verifier: a hub id or a bare name, never a path.
        vocab: folder with `t2d.npy` and `d2t.npy`.
        shape: the draft's decoder, from `shared.draft_shape`.
        layer_ids: ids of the auxiliary layers, without the final one.
        coverage: share of validation tokens that the draft vocabulary holds, in [0, 1].
        verifier_norm_eps: epsilon of the verifier's final norm.
        attention: speculators' name of the attention implementation.
        run: the attempt's folder. `earlier`: run folders of earlier attempts, newest first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: Path
    data: str
    verifier: Path
    verifier_name: str
    vocab: Path
    shape: dict[str, Any]
    layer_ids: list[int]
    num_train: int
    num_val: int
    coverage: float
    verifier_norm_eps: float
    device: Literal["cpu", "cuda"]
    attention: Literal["simple_flex_attention", "sdpa", "eager"]
    attention_why: str
    dtype: Literal["float32", "bfloat16"]
    train: TrainSpec
    draft: DraftSpec
    integrations: list[str]
    run_name: str
    run: Path
    earlier: list[Path]

    @property
    def export_dtype(self) -> str:
        """Type of the published weights: float32 from the CPU, bfloat16 from CUDA."""
        return "float32" if self.device == "cpu" else "bfloat16"


class EpochResult(BaseModel):
    """An epoch's validation: `metrics` holds loss, full_acc_i, cond_acc_i and estimated_acceptance_length."""

    epoch: int
    step: int
    metrics: dict[str, float]


class RunResult(BaseModel):
    """What a finished trainer leaves in `result.json`; the stage judges it, never the exit code."""

    steps: int
    total_steps: int
    resumed_from: int
    best: EpochResult
    last: EpochResult
    parameters: dict[str, int]
    seconds: float
    peak_gpu_bytes: int | None
    peak_host_bytes: int
    tokens: int
    samples: int
    rows: Accounting
    world_size: int
    versions: dict[str, str]
