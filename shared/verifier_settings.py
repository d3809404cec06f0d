"""How a verifier is started: read from `EYRIE_VERIFIER_...`, written for another process with `to_environ`."""

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

ENV_PREFIX = "EYRIE_VERIFIER_"
COMMIT = re.compile(r"[0-9a-f]{40}")  # what a pinned revision of a hub model is
# vLLM's loader for EAGLE-3 drafts expects three auxiliary states unless a draft's config says otherwise.
AUXILIARY_LAYERS = 3


class VerifierMode(StrEnum):
    """What the verifier does beside answering."""

    CAPTURE = "capture"
    DRAFT = "draft"
    PLAIN = "plain"


class Device(StrEnum):
    """Where vLLM runs; `auto` takes CUDA where the driver is there."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class VerifierSettings(BaseSettings):
    """One vLLM server. Lists and objects are JSON in the environment; None means: decided when it starts."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    model: str = Field("moonshotai/Kimi-K2.5", min_length=1, description="Model folder, or hub id.")
    revision: str | None = Field(
        None, description="Of a hub id; a commit (40 hexadecimal digits) with `trust_remote_code`."
    )
    served_model_name: str | None = Field(None, description="Name that requests give; None: `model`.")
    host: str = Field("127.0.0.1", min_length=1, description="Address that vLLM listens on.")
    port: int = Field(8000, ge=1, le=65535, description="Port that vLLM listens on.")
    device: Device = Field(Device.AUTO, description="`cpu`, `cuda`, or `auto`: CUDA where its driver is.")
    mode: VerifierMode = Field(
        VerifierMode.CAPTURE,
        description="`capture` keeps hidden states, `draft` serves a draft too, `plain` does neither.",
    )
    layer_ids: list[int] | None = Field(
        None,
        description="Captured states: id k is the state after k layers; the number of layers is the final one, "
        "which is always captured. None: `default_layer_ids` of the model.",
    )
    shared_folder: Path = Field(
        Path("var/exchange"), description="Folder that captured states are left in; the workers read and empty it."
    )
    draft_path: Path | None = Field(None, description="Folder of the draft in `draft` mode.")
    num_speculative_tokens: int = Field(3, ge=1, le=16, description="Tokens that the draft proposes at a time.")
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that one layer is spread over.")
    nodes: int = Field(1, ge=1, description="Hosts that one verifier is spread over; each runs this service.")
    node_rank: int = Field(0, ge=0, description="Which of the hosts this is; 0 answers requests and captures states.")
    head_address: str | None = Field(None, description="Address of host 0, with several hosts.")
    max_model_len: int | None = Field(
        None, ge=16, description="Longest prompt and answer in tokens; None: 2048 on CPU, else the model's."
    )
    max_num_seqs: int | None = Field(
        None, ge=1, description="Requests in one batch; None: 32 on CPU, else vLLM's choice."
    )
    max_num_batched_tokens: int | None = Field(
        None, ge=16, description="Tokens in one step; None: 2048 on CPU, else vLLM's choice."
    )
    gpu_memory_utilization: float | None = Field(
        None, gt=0, le=1, description="Share of GPU memory that vLLM takes; None: its choice."
    )
    cpu_kv_cache_gib: float = Field(
        0.5, gt=0, description="GiB of memory for the KV cache on CPU, captured states included."
    )
    cpu_threads: int | None = Field(
        None, ge=1, description="OpenMP threads on CPU; None: one for every two cores that may be used."
    )
    dtype: str | None = Field(
        None, description="Computation type; None: float32 on CPU (bfloat16 is slow there), else the model's."
    )
    trust_remote_code: bool = Field(False, description="Whether code in the model's repository may run.")
    language_model_only: bool = Field(True, description="Leaves the vision tower out: text only.")
    enforce_eager: bool | None = Field(None, description="No compilation and no CUDA graphs; None: on CPU only.")
    reasoning_parser: str = Field("kimi_k2", description="vLLM's parser of the reasoning; empty: none.")
    tool_call_parser: str = Field("kimi_k2", description="vLLM's parser of tool calls; empty: none.")
    seed: int = Field(0, ge=0, description="Seed of vLLM's sampling.")
    extra_args: list[str] = Field(default_factory=list, description="Further vLLM arguments, appended as they are.")

    @model_validator(mode="after")
    def _fields_agree(self) -> "VerifierSettings":
        if self.trust_remote_code and not COMMIT.fullmatch(self.revision or "") and not Path(self.model).is_dir():
            raise ValueError(
                "trust_remote_code needs revision: a commit of 40 hexadecimal digits, as the code under a branch or a "
                "tag may change"
            )
        if self.node_rank >= self.nodes:
            raise ValueError(f"node_rank is {self.node_rank}, with nodes {self.nodes} it lies below {self.nodes}")
        if self.nodes > 1 and not self.head_address:
            raise ValueError("several nodes need head_address: where host 0 is found")
        if self.mode is VerifierMode.DRAFT and self.draft_path is None:
            raise ValueError("mode draft needs draft_path: the folder of the draft")
        return self

    def to_environ(self) -> dict[str, str]:
        """The environment that makes another process read exactly these settings; unset optional ones are left out."""
        values: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return {
            ENV_PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
        }


def capture_note_name(served_model: str) -> str:
    """Name of the note in the shared folder with which a verifier says what it captures (`{"layer_ids": [...]}`)."""
    return f"captures-{served_model.strip('/').replace('/', '--')}.json"


def default_layer_ids(num_hidden_layers: int) -> list[int]:
    """The states to capture by default: low, middle, high and final, distinct and ascending.

    From seven layers on these are the ids that vLLM and speculators take by themselves (2, half, three below the top)
    and the final state; they coincide in smaller verifiers, which get the first, the middle and the last but one
    instead. 61 layers give [2, 30, 58, 61]. Id 0, the embeddings, is no choice: vLLM's DeepSeek model cannot hand it
    out.

    Raises:
        ValueError: fewer than four layers have no three auxiliary states below the final one; says what to give.
    """
    final = num_hidden_layers
    if final < AUXILIARY_LAYERS + 1:
        given = f"such as {list(range(1, final + 1))}" if final > 1 else "but a verifier of one layer has none to give"
        plural = "s" if final != 1 else ""
        raise ValueError(
            f"a verifier of {final} layer{plural} has no {AUXILIARY_LAYERS} distinct auxiliary layers below its "
            f"final one: give layer_ids yourself, distinct, from 1 to {final}, {given}"
        )
    if final < 7:
        return [1, final // 2, final - 1, final]
    return [2, final // 2, final - 3, final]
