"""Datasets and drafts: documents that live in the artifact store alone."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from shared.schemas.manifest import canonical_digest
from shared.schemas.spec import Document

ONLY_SOURCE = "data"  # the name of a dataset's only file: what is read from it is equal whatever its file was called


class DatasetFile(Document):
    """One file of a dataset, byte for byte as it was uploaded."""

    path: str = Field(description="Relative to the dataset's folder.", examples=["files/0.jsonl"])
    name: str = Field(description="Name of the source, unique in its dataset.")
    format: Literal["jsonl", "parquet", "arrow", "safetensors", "npy", "pt", "json"] = "jsonl"
    compression: Literal["none", "gzip"] = "none"
    rows: int = Field(ge=0, description="Rows; for JSONL, lines that are not blank.")
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    weight: float | None = Field(None, gt=0, allow_inf_nan=False, description="Share among the sources; none: all.")
    dataset: str | None = Field(None, description="The dataset that it was taken from, in a composed one.")


class DatasetRecord(Document):
    """An immutable dataset: the folder `datasets/ID` with `dataset.json` and the files that it names."""

    id: str
    object: Literal["dataset"] = "dataset"
    kind: Literal["conversations", "rows", "vocabulary"] = "conversations"
    name: str
    rows: int = Field(ge=0, description="Of all files.")
    bytes: int = Field(ge=0, description="Of all files.")
    sha256: str = Field(description="Of the file where there is one without a weight, else over all of `files`.")
    files: list[DatasetFile] = Field(default_factory=list)
    created_at: datetime


def files_digest(files: list[DatasetFile]) -> str:
    """The content hash of a dataset: what is read from it depends on nothing else."""
    if len(files) == 1 and files[0].weight is None and files[0].name == ONLY_SOURCE:
        return files[0].sha256
    return canonical_digest([[file.name, file.sha256, file.weight] for file in files])


class DraftRecord(Document):
    """A published draft: `drafts/ID.json`; its files lie in the folder `root`."""

    id: str
    object: Literal["draft"] = "draft"
    job_id: str = Field(description="The job that made it.")
    verifier: str
    algorithm: str
    root: str = Field(description="Store key of the folder with config.json and model.safetensors.")
    manifest: str = Field(description="Store key of the publish stage's manifest.")
    digest: str = Field("", description="The digest of that manifest; empty in records of older versions.")
    bytes: int = Field(ge=0)
    evaluation: dict[str, Any] = Field(default_factory=dict, description="The evaluation report.")
    gate: Literal["passed", "failed", "none"] = Field("none", description="A draft that failed is never promoted.")
    created_at: datetime
