"""The job document: what a person submits to `POST /v1/jobs`, and what a preset fills in.

Every field is typed, described and bounded; unknown fields are refused. `shared.presets` resolves a partial document to
a complete one, which is stored with the job.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[\w][\w .:@+/-]*$")]


class Document(BaseModel):
    """Base of all wire documents: unknown fields are an error, values are checked on assignment."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=())


class ManagedVerifier(Document):
    """A verifier that the worker starts on leased GPUs and stops again."""

    tensor_parallel_size: int = Field(1, ge=1, le=64, description="GPUs that one verifier spans.")
    max_model_len: int = Field(4096, ge=16, description="Longest prompt plus answer, in tokens.")
    max_num_seqs: int = Field(16, ge=1, le=4096, description="Conversations decoded at the same time.")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="Share of each GPU's memory that vLLM may use.")
    trust_remote_code: bool = Field(False, description="Run code from the model; `revision` must be a commit then.")
    reasoning_parser: str = Field("kimi_k2", max_length=64, description="vLLM's reasoning parser; empty: none.")
    tool_call_parser: str = Field("kimi_k2", max_length=64, description="vLLM's tool-call parser; empty: none.")
    start_timeout_s: int = Field(3600, ge=10, description="Seconds that loading the weights may take.")
    keep_warm: bool = Field(
        True,
        description="Before it is stopped, make the data of jobs in line that want the same one, with one load.",
    )


class VerifierSpec(Document):
    """The model whose tokens the draft learns to guess, and how to reach it."""

    model: str = Field(
        min_length=1,
        max_length=512,
        description="Model folder (absolute path, as the workers see it) or hub id of the verifier.",
        examples=["moonshotai/Kimi-K2.5"],
    )
    revision: str | None = Field(
        None,
        max_length=128,
        description="Branch, tag or commit of a hub model; with `trust_remote_code` a commit (40 hexadecimal digits).",
    )
    endpoint: str | None = Field(
        None,
        max_length=512,
        pattern=r"^https?://",
        description="Base URL of a running verifier (external). Neither this nor `managed`: the fleet's own verifier.",
    )
    managed: ManagedVerifier | None = Field(None, description="Have the worker start the verifier itself.")

    @model_validator(mode="after")
    def one_way_to_reach_it(self) -> "VerifierSpec":
        if self.endpoint and self.managed:
            raise ValueError("give `endpoint` (external) or `managed`, not both")
        return self


class SamplingSpec(Document):
    """How the verifier samples its answers."""

    temperature: float = Field(1.0, ge=0, le=2, description="0 is greedy.")
    top_p: float = Field(0.95, gt=0, le=1)
    max_tokens: int = Field(2048, ge=1, le=262144, description="Longest answer, reasoning included, in tokens.")
    thinking: bool = Field(True, description="Let the verifier reason before it answers.")
    seed: int | None = Field(None, ge=0, lt=2**63, description="Base seed; each row derives its own from it.")


class DataSpec(Document):
    """Which prompts, how answers are sampled, and how rows are split."""

    dataset: str = Field(pattern=r"^ds_", max_length=64, description="Id of an uploaded dataset.")
    generate: bool = Field(
        True,
        description="Have the verifier write the answers. False keeps those of the file; states come by prefill.",
    )
    sampling: SamplingSpec = Field(default_factory=SamplingSpec)
    max_seq_len: int = Field(2048, ge=8, le=262144, description="Rows are clipped to this many tokens.")
    val_ratio: float = Field(0.1, gt=0, lt=1, description="Share of conversations held out, at least one.")
    limit: int | None = Field(
        None, ge=2, description="Use so many conversations only: the first, or each source's share."
    )
    system_prompt: str | None = Field(None, max_length=65536, description="Put before conversations without one.")
    on_truncated: Literal["keep", "drop"] = Field("keep", description="What to do with answers cut by `max_tokens`.")
    on_control_tokens: Literal["reject", "allow"] = Field(
        "reject", description="What to do with rows whose text spells out one of the verifier's control tokens."
    )
    deduplicate: bool = Field(True, description="Keep equal prompts once, and count the others.")
    max_bad_fraction: float = Field(0.05, ge=0, le=1, description="More failed or bad rows than this fail the stage.")
    concurrency: int = Field(16, ge=1, le=1024, description="Requests to the verifier at the same time.")
    shard_rows: int = Field(2000, ge=1, le=100000, description="Rows in one shard; resume and hashing are per shard.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seeds the split, and which rows of a weighted source are taken.")


class CaptureSpec(Document):
    """Which of the verifier's hidden states are kept, and how they are obtained."""

    mode: Literal["auto", "inline", "prefill"] = Field(
        "auto", description="`inline`: states with the answer. `prefill`: in a second pass. `auto`: the cheaper."
    )
    layer_ids: list[Annotated[int, Field(ge=1)]] | None = Field(
        None,
        max_length=16,
        description="Auxiliary layers: id k is the residual stream after k layers. Absent: low, middle and high.",
        examples=[[2, 30, 58]],
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field("auto", description="Storage; `auto` keeps the verifier's.")


class DraftSpec(Document):
    """Shape of the draft. Absent numbers follow the verifier's configuration."""

    algorithm: Literal["eagle3"] = Field("eagle3", description="Speculators' name of the algorithm.")
    vocab_size: int = Field(32000, ge=1, description="Draft vocabulary; at most the verifier's.")
    vocabulary: str | None = Field(
        None,
        pattern=r"^ds_",
        max_length=64,
        description="Id of a dataset of kind `vocabulary` (t2d and d2t). Absent: counted from the job's own rows.",
    )
    num_layers: int = Field(1, ge=1, le=16)
    num_attention_heads: int | None = Field(None, ge=1, le=1024, description="Must divide the hidden size.")
    num_key_value_heads: int | None = Field(None, ge=1, le=1024, description="Must divide the number of heads.")
    head_dim: int | None = Field(
        None, ge=2, le=512, description="Even, for rotary positions; no attention kernel of vLLM takes larger ones."
    )
    intermediate_size: int | None = Field(None, ge=1, le=2**20, description="Width of the gated MLP.")
    rope_theta: float | None = Field(None, gt=0, le=1e12, description="Plain rotary positions with this base.")
    max_position_embeddings: int | None = Field(None, ge=1, le=2**24, description="Longest context in tokens.")
    rms_norm_eps: float | None = Field(None, gt=0, lt=1)
    sliding_window: int | None = Field(
        None, ge=1, le=2**24, description="Tokens; absent: full attention in every draft layer."
    )
    norm_before_residual: bool = Field(True, description="Where the first layer's residual branches off.")
    norm_before_fc: bool = Field(True, description="EAGLE-3.1: normalise auxiliary states before they are fused.")
    norm_output: bool = Field(True, description="EAGLE-3.1: feed normalised states back into the next TTT step.")


class TrainSpec(Document):
    """Hyperparameters of the trainer."""

    epochs: int = Field(10, ge=1, le=1000)
    max_steps: int | None = Field(None, ge=1, description="Stop after so many optimizer steps.")
    lr: float = Field(3e-5, ge=0, le=1, description="Peak learning rate; 0 trains nothing and only measures.")
    scheduler: Literal["cosine", "linear", "none"] = "cosine"
    warmup_ratio: float = Field(0.01, ge=0, le=1, description="Share of all steps in which the rate rises from 0.")
    pack_length: int = Field(8192, ge=8, le=1048576, description="Tokens packed into one step, per rank.")
    ttt_steps: int = Field(3, ge=1, le=16, description="Training-time-test steps: how far ahead the draft trains.")
    ttt_step_loss_decay: float = Field(1.0, gt=0, le=1, description="Weight of step i is this to the power i.")
    num_workers: int = Field(4, ge=0, le=64, description="Loader processes.")
    optimizer: Literal["adamw", "muon"] = "adamw"
    weight_decay: float = Field(0.01, ge=0, le=1)
    seed: int = Field(0, ge=0, lt=2**32)
    gpus: int = Field(1, ge=0, le=64, description="GPUs to lease; 0 trains on the CPU.")
    attention: Literal["auto", "flex", "sdpa", "eager"] = "auto"
    matmul_precision: Literal["highest", "high", "medium"] = Field("high", description="torch's, for float32.")
    hidden_noise: float = Field(
        0.0, ge=0, le=10, description="Uniform noise in [-x, x] on auxiliary states, training split only; 0: off."
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field("auto", description="bfloat16 on CUDA, float32 on CPU.")
    checkpoint_every_s: int = Field(300, ge=1, description="Seconds between resume points.")


class SuiteSpec(Document):
    """A named set of prompts on which acceptance is measured."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    dataset: str | None = Field(
        None,
        pattern=r"^ds_",
        max_length=64,
        description="Id of a dataset. Absent: the job's own held-out conversations.",
    )


class GateSpec(Document):
    """What a draft must reach to be promotable; a miss leaves the job succeeded and the draft marked."""

    min_acceptance_length: float | None = Field(None, ge=1, description="In the first suite, trained draft.")
    min_gain: float | None = Field(None, gt=0, description="Trained over untrained acceptance length, as a ratio.")


class EvaluateSpec(Document):
    """How the draft's acceptance is measured."""

    mode: Literal["vllm", "offline"] = Field(
        "vllm", description="`vllm` serves the published folder; `offline` estimates from validation states."
    )
    suites: list[SuiteSpec] = Field(default_factory=lambda: [SuiteSpec(name="heldout")], min_length=1, max_length=16)
    num_speculative_tokens: int = Field(3, ge=1, le=16)
    baseline: Literal["vllm", "offline", "none"] = Field("vllm", description="How the untrained draft is measured.")
    compare_to: str | None = Field(None, pattern=r"^draft_", max_length=64, description="Another draft to measure too.")
    max_prompts: int = Field(64, ge=1, le=100000, description="Prompts taken from each suite.")
    max_tokens: int | None = Field(None, ge=1, description="Answer length; absent: as in `data.sampling`.")
    temperature: float = Field(0.0, ge=0, le=2)
    concurrency: int = Field(8, ge=1, le=1024)
    gpus: int = Field(1, ge=0, le=64, description="GPUs to lease for the verifier beside the draft; 0 is the CPU.")
    gate: GateSpec = Field(default_factory=GateSpec)

    @model_validator(mode="after")
    def suites_differ(self) -> "EvaluateSpec":
        names = [suite.name for suite in self.suites]
        if len(set(names)) != len(names):
            raise ValueError("suite names must differ")
        return self


class LimitsSpec(Document):
    """Seconds that each stage may take."""

    prepare_s: int = Field(3600, ge=1)
    generate_s: int = Field(7 * 86400, ge=1)
    capture_s: int = Field(2 * 86400, ge=1)
    vocab_s: int = Field(3600, ge=1)
    train_s: int = Field(7 * 86400, ge=1)
    evaluate_s: int = Field(86400, ge=1)
    publish_s: int = Field(3600, ge=1)


class JobSpec(Document):
    """A complete job document, every field with its value: what is stored with the job."""

    name: Name | None = Field(None, description="A name for people; need not be unique.")
    preset: str = Field("kimi-k2.5", max_length=64, description="Fills what the document leaves out.")
    verifier: VerifierSpec
    data: DataSpec
    capture: CaptureSpec = Field(default_factory=CaptureSpec)
    draft: DraftSpec = Field(default_factory=DraftSpec)
    train: TrainSpec = Field(default_factory=TrainSpec)
    evaluate: EvaluateSpec = Field(default_factory=EvaluateSpec)
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    integrations: list[Literal["tensorboard", "trackio", "wandb", "mlflow"]] | None = Field(
        None,
        max_length=4,
        description="Loggers of the trainer; absent: Trackio's local files, where the worker has it. Their credentials "
        "come from the worker.",
    )
    metadata: dict[MetadataKey, MetadataValue] = Field(default_factory=dict, max_length=16)

    @field_validator("integrations")
    @classmethod
    def loggers_differ(cls, names: list[str] | None) -> list[str] | None:
        if names and len(set(names)) != len(names):
            raise ValueError("name each logger once")
        return names


JsonObject = dict[str, Any]
