"""Datasets and drafts: documents that live in the artifact store alone."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from shared.schemas.spec import Document


class DatasetRecord(Document):
    """An uploaded file of prompts or conversations: `datasets/ID/dataset.json` beside `datasets/ID/data.jsonl`."""

    id: str
    object: Literal["dataset"] = "dataset"
    name: str
    rows: int = Field(ge=1, description="Lines that are not blank.")
    bytes: int = Field(ge=1)
    sha256: str = Field(description="Of the file as it was uploaded.")
    created_at: datetime


class DraftRecord(Document):
    """A published draft: `drafts/ID.json`; its files lie in the folder `root`."""

    id: str
    object: Literal["draft"] = "draft"
    job_id: str = Field(description="The job that made it.")
    verifier: str
    algorithm: str
    root: str = Field(description="Store key of the folder with config.json and model.safetensors.")
    manifest: str = Field(description="Store key of the publish stage's manifest.")
    bytes: int = Field(ge=0)
    evaluation: dict[str, Any] = Field(default_factory=dict, description="The evaluation report.")
    gate: Literal["passed", "failed", "none"] = Field("none", description="A draft that failed is never promoted.")
    created_at: datetime
