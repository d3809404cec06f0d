"""A plan: what a job would need, worked out before anything starts."""

from typing import Literal

from pydantic import Field

from shared.schemas.job import Stage
from shared.schemas.spec import Document, JobSpec


class Amount(Document):
    """An estimate: surely so much, probably so much, never more than so much."""

    least: int = Field(ge=0)
    likely: int = Field(ge=0)
    most: int = Field(ge=0)

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(least=self.least + other.least, likely=self.likely + other.likely, most=self.most + other.most)

    def times(self, factor: float) -> "Amount":
        """Every figure multiplied."""
        return Amount(least=int(self.least * factor), likely=int(self.likely * factor), most=int(self.most * factor))


class TokenEstimate(Document):
    """How many token ids a job's rows hold."""

    rows: int = Field(ge=0)
    tokens: Amount = Field(description="Ids that have a hidden state.")
    basis: Literal["dataset", "prepare", "generate"] = Field(
        description="What it was worked out from: the dataset's size, or what an earlier equal stage has counted."
    )
    assumptions: list[str] = Field(default_factory=list)


class DraftParameters(Document):
    """Parameters of a draft's checkpoint."""

    trained: int = Field(ge=0, description="Fusion, decoder layers and norms.")
    head: int = Field(ge=0, description="Output head, copied from the verifier.")
    embedding: int = Field(ge=0, description="Embedding, copied from the verifier.")

    @property
    def total(self) -> int:
        return self.trained + self.head + self.embedding


class StagePlan(Document):
    """One stage of a planned job."""

    name: Stage
    disk_bytes: Amount = Field(description="New bytes in the artifact store, at the stage's peak.")
    reused: bool = Field(False, description="An equal stage has finished already: nothing is computed.")
    seconds: float | None = Field(None, description="By the fleet's own history; null where there is none.")


class StoreRoom(Document):
    """How much the artifact store can still take."""

    free_bytes: int = Field(description="On its volume.")
    floor_bytes: int = Field(description="So much of it is left free.")
    quota_bytes: int | None = Field(None, description="EYRIE_STORE_QUOTA_BYTES.")
    used_bytes: int | None = Field(None, description="Of the quota; null where there is none.")

    @property
    def left(self) -> int:
        """Bytes that a stage may still write; negative where there are too many already."""
        by_volume = self.free_bytes - self.floor_bytes
        return by_volume if self.quota_bytes is None else min(by_volume, self.quota_bytes - (self.used_bytes or 0))


class PlanProblem(Document):
    """What stands against a job."""

    pointer: str = Field(description="JSON pointer into the document; empty: the service itself.")
    message: str


class Plan(Document):
    """What a job document would lead to. Figures are null where the document does not say enough."""

    object: Literal["plan"] = "plan"
    ok: bool = Field(description="No problem was found.")
    problems: list[PlanProblem] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list, description="What could not be told and why, and what may go wrong.")
    document: JobSpec | None = Field(None, description="As it would be stored.")
    tokens: TokenEstimate | None = None
    bytes_per_token: int | None = Field(None, description="Hidden states of one token.")
    stages: list[StagePlan] = Field(default_factory=list)
    disk_bytes: Amount | None = Field(None, description="Of all stages that are not reused.")
    steps: int | None = Field(None, description="Optimizer steps, probably.")
    seconds: float | None = Field(
        None, description="Of all stages; null where one has no history. Waiting is not in it."
    )
    gpu_memory_bytes: Amount | None = Field(
        None, description="On each GPU that trains the draft; null where none does, or the shape is not known."
    )
    draft_parameters: DraftParameters | None = None
    draft_parameters_total: int | None = None
    verifier_starts: int | None = Field(None, description="How often vLLM is started, each time loading the weights.")
    verifier_load_seconds: float | None = Field(
        None, description="What the latest of such starts took on this fleet; null before the first."
    )
    loading_seconds: float | None = Field(None, description="`verifier_starts` times `verifier_load_seconds`.")
    store: StoreRoom

    def reused(self) -> set[Stage]:
        """Stages that need not run."""
        return {stage.name for stage in self.stages if stage.reused}
