"""What `POST /v1/gc` finds and removes."""

from typing import Literal

from pydantic import Field

from shared.schemas.spec import Document

Kind = Literal["stage", "attempt", "staging", "job_folder", "dataset_folder", "events"]


class Leftover(Document):
    """Something in the store, or an event stream in Redis, that nothing refers to any more."""

    kind: Kind
    key: str = Field(description="Store key, or Redis key of an event stream.")
    bytes: int = Field(ge=0, description="What its files take up; 0 for an event stream.")
    reason: str


class RetentionReport(Document):
    """One look at the store."""

    applied: bool = Field(description="Whether the items were removed; else they would be.")
    retention_days: float
    items: list[Leftover]
    bytes: int = Field(ge=0, description="Of all items.")
    kept: list[str] = Field(default_factory=list, description="What could not be judged or removed, and why.")
