"""What became of everything that came into a stage: kept, or rejected for a named reason; nothing is lost unnamed."""

from pydantic import Field, model_validator

from shared.schemas.spec import Document


class Accounting(Document):
    """The books of one stage. They balance, or the document is refused."""

    unit: str = Field(description="What is counted: rows, turns.")
    taken: int = Field(ge=0, description="How many came in.")
    kept: int = Field(ge=0, description="How many went on to the next stage.")
    rejected: dict[str, int] = Field(default_factory=dict, description="How many did not, by reason.")

    @model_validator(mode="after")
    def balances(self) -> "Accounting":
        if self.taken != self.kept + sum(self.rejected.values()):
            raise ValueError(f"{self.taken} {self.unit} came in, {self.kept} were kept, rejected: {self.rejected}")
        return self
