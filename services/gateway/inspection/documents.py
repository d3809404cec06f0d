"""What an inspection is asked, and what it answers."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from shared.schemas.spec import DataSpec, Document, JobSpec, ManagedVerifier

DEFAULT_SAMPLE = 500
MAX_SAMPLE = 10_000
DATA_FIELDS = DataSpec.model_fields


def _as_in_a_job(field: str) -> Any:
    """The description of a field of `DataSpec`; its bounds are checked when the request is resolved to a job."""
    return Field(None, description=DATA_FIELDS[field].description)


class SamplingPart(Document):
    """The part of `data.sampling` that decides how a conversation is rendered."""

    thinking: bool | None = Field(None, description="Let the verifier reason before it answers.")


class DataPart(Document):
    """The part of a job document's `data` that decides which rows are kept, and how they are rendered."""

    generate: bool | None = _as_in_a_job("generate")
    sampling: SamplingPart | None = None
    max_seq_len: int | None = _as_in_a_job("max_seq_len")
    val_ratio: float | None = _as_in_a_job("val_ratio")
    limit: int | None = _as_in_a_job("limit")
    system_prompt: str | None = _as_in_a_job("system_prompt")
    on_control_tokens: Literal["reject", "allow"] | None = _as_in_a_job("on_control_tokens")
    deduplicate: bool | None = _as_in_a_job("deduplicate")
    seed: int | None = _as_in_a_job("seed")


class VerifierPart(Document):
    """The verifier, as a job document names it."""

    model: str | None = Field(None, description="Model folder or hub id.")
    revision: str | None = None
    endpoint: str | None = Field(None, description="Base URL of a running verifier, which renders the samples.")
    managed: ManagedVerifier | None = Field(None, description="As in the job; inspection starts no verifier.")


class InspectionBody(Document):
    """What to inspect a dataset for. Everything is optional; what is absent is filled in as for a job."""

    preset: str | None = Field(None, max_length=64, description="Fills what is left out; absent: the default preset.")
    data: DataPart = Field(default_factory=DataPart)
    verifier: VerifierPart = Field(default_factory=VerifierPart)
    sample: int = Field(
        DEFAULT_SAMPLE,
        ge=0,
        le=MAX_SAMPLE,
        description="Rows rendered for the token lengths, chosen by a seeded hash from all sources; 0: none.",
    )
    wait_s: float | None = Field(None, ge=0, le=60, description="As the parameter of the same name.")


class ServedVerifier(Document):
    """A verifier that answered.

    Attributes:
        template: digest of how it renders a fixed conversation: another template or tokenizer gives another one.
    """

    endpoint: str
    model: str
    template: str


class InspectionRequest(Document):
    """A resolved request: what the child process works from.

    Attributes:
        verifier_folder: the verifier's files on this machine, or None where only its name is known here.
        served: the verifier that renders, or None; then `why_not_rendered` says why.
    """

    dataset: str
    spec: JobSpec
    sample: int
    verifier_folder: str | None
    verifier_files: dict[str, str] = Field(description="SHA-256 of those of its files that decide about rows.")
    served: ServedVerifier | None
    why_not_rendered: str | None


class RejectedRow(BaseModel):
    """One row that would not be used."""

    source: str
    line: int
    message: str


class RejectReason(BaseModel):
    """Rows that are rejected for one reason."""

    reason: str
    rows: int
    first: list[RejectedRow] = Field(description="At most three, in the order of the files.")


class SourceCounts(BaseModel):
    """What becomes of one of the dataset's files."""

    name: str
    rows: int
    kept: int


class Bin(BaseModel):
    """A bar of the histogram: lengths from `low` to `high`, both included."""

    low: int
    high: int
    count: int


class TokenLengths(BaseModel):
    """Lengths, in tokens, of the rows that a job would make: one for each assistant turn, with all that it reads."""

    unit: Literal["rows", "prompts"] = Field(description="`prompts` where the verifier has yet to write the answers.")
    conversations: int = Field(description="Kept conversations that were measured.")
    complete: bool = Field(description="Whether these are all that are kept; else they are a sample.")
    measured: int = Field(description="Rows (or prompts) of these conversations.")
    min: int
    median: int
    p95: int
    max: int
    total: int = Field(description="Tokens of the measured rows that a job would train on, clipped ones as clipped.")
    supervised: int = Field(description="Tokens that it would learn.")
    max_seq_len: int = Field(description="`data.max_seq_len`.")
    over_max_seq_len: int = Field(description="Measured rows that are longer than that.")
    clipped: int = Field(description="Those of them that are clipped; the others are refused.")
    histogram: list[Bin]


class SampleSegment(BaseModel):
    """A stretch of tokens that are all learnt, or all not. Supervised without tokens: here the verifier will write."""

    text: str | None = Field(description="Null where no verifier was there to decode it.")
    token_ids: list[int]
    supervised: bool


class TurnView(BaseModel):
    """One assistant turn: what the verifier reads before it, and what is learnt of it."""

    turn: int
    tokens: int
    supervised_tokens: int
    clipped: bool = Field(description="Whether `data.max_seq_len` cuts it.")
    segments: list[SampleSegment]


class SampleView(BaseModel):
    """A kept row as the verifier's chat template renders it."""

    id: str
    source: str
    line: int
    turns: list[TurnView]


class VocabularyView(BaseModel):
    """A vocabulary that a draft may have."""

    files: dict[str, str] = Field(description="Names of the files that hold `t2d` and `d2t`.")
    target_size: int | None = Field(None, description="Entries of `t2d`: the verifier's tokens.")
    draft_size: int | None = Field(None, description="Entries of `d2t`: the draft's tokens.")
    note: str | None = None


class Inspection(BaseModel):
    """What a job would make of a dataset."""

    object: Literal["inspection"] = "inspection"
    status: Literal["finished"] = "finished"
    key: str = Field(description="Names the request; an equal request gets the stored answer.")
    dataset: str
    kind: str = Field(description="What the dataset holds: conversations, rows or vocabulary.")
    problem: str | None = Field(None, description="Why a job could not use it; null where one could.")
    rows: int = 0
    kept: int = Field(0, description="Conversations that would go on; `rows` = `kept` + all of `rejected`.")
    train: int = 0
    val: int = 0
    sources: list[SourceCounts] = Field(default_factory=list)
    mended: dict[str, int] = Field(default_factory=dict, description="What was put right on the way, by note.")
    rejected: list[RejectReason] = Field(default_factory=list, description="By the prepare stage, most frequent first.")
    refused: list[RejectReason] = Field(default_factory=list, description="Of those measured, by the generate stage.")
    tokens: TokenLengths | None = None
    samples: list[SampleView] | None = None
    why_not_rendered: str | None = Field(None, description="Why `tokens` or `samples` are missing, and what to do.")
    vocabulary: VocabularyView | None = Field(None, description="Of a dataset that is a vocabulary.")
    warnings: list[str] = Field(default_factory=list)
    data: dict[str, Any] = Field(description="The settings that it was made with.")
    verifier: str = Field(description="The verifier's model.")
    provisional: bool = Field(False, description="The verifier failed meanwhile: kept for a minute, ask again then.")
    seconds: float = 0.0
    created_at: datetime


class InspectionProgress(BaseModel):
    """How far a running inspection is."""

    phase: Literal["waiting", "reading", "rendering"] = "waiting"
    rows: int = Field(0, description="Rows read so far.")
    share: float = Field(0.0, description="Share of the dataset's bytes that was read, from 0 to 1.")
    rendered: int = Field(0, description="Conversations rendered so far.")


class InspectionRunning(BaseModel):
    """An inspection that is not finished: send the same request again, and get its progress or its end."""

    object: Literal["inspection"] = "inspection"
    status: Literal["running"] = "running"
    key: str
    dataset: str
    progress: InspectionProgress


class Failure(BaseModel):
    """Why there is no result, as the status and detail of the answer."""

    status: int
    detail: str


class Report(BaseModel):
    """What the child process says of itself every half a second."""

    progress: InspectionProgress
    failure: Failure | None = None
