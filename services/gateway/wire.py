"""What the API answers: pages, and models that more than one resource shows. Jobs have `job_view`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field

from shared.schemas.job import Stage
from shared.schemas.registry import DatasetRecord, DraftRecord

Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    """One page of a list. Pass the id of its last entry as `after` to get the next one."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool


class DeletedView(BaseModel):
    """Something that was there until now."""

    id: str
    object: str = Field(description="What it was.", examples=["job"])
    deleted: Literal[True] = True


class FileView(BaseModel):
    """A file that can be downloaded."""

    path: str
    size: int = Field(description="Bytes.")
    sha256: str
    stage: Stage | None = None
    url: str


class DatasetView(DatasetRecord):
    """A dataset as the API shows it."""


class DraftView(BaseModel):
    """A published draft as the API shows it."""

    id: str
    object: Literal["draft"] = "draft"
    job_id: str
    verifier: str
    algorithm: str
    bytes: int
    evaluation: dict[str, Any]
    gate: Literal["passed", "failed", "none"]
    tags: list[str] = Field(description="What it was promoted to, sorted.", examples=[["production"]])
    created_at: datetime
    links: dict[str, str]


class PresetView(BaseModel):
    """A preset and what it fills in."""

    name: str
    default: bool
    document: dict[str, Any]


def draft_view(record: DraftRecord, tags: Sequence[str]) -> DraftView:
    """Show a draft with its tags."""
    base = f"/v1/drafts/{record.id}"
    links = {"self": base, "files": f"{base}/files", "lineage": f"{base}/lineage", "job": f"/v1/jobs/{record.job_id}"}
    fields = record.model_dump(exclude={"root", "manifest", "object"})
    return DraftView(links=links, tags=list(tags), **fields)
