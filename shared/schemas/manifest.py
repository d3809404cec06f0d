"""Manifests: what a finished stage made, from which inputs, byte for byte."""

import hashlib
import json
from datetime import datetime
from typing import Any

from pydantic import Field

from shared.schemas.job import Stage
from shared.schemas.spec import Document


class FileEntry(Document):
    """One file of a stage."""

    path: str = Field(description="Relative to the manifest's `root`.")
    size: int = Field(ge=0, description="Bytes.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(Document):
    """Written once, exclusively, after every file that it names was written and hashed."""

    stage: Stage
    key: str = Field(description="Content key of the stage.")
    token: str = Field(description="The attempt that won.")
    job_id: str = Field(description="The job whose attempt won; others may reuse it.")
    root: str = Field(description="Store key of the folder that holds the files.")
    inputs: dict[str, str] = Field(description="Digest of each input manifest or document, by name.")
    parameters: dict[str, Any] = Field(description="The parts of the job document that this stage depends on.")
    versions: dict[str, str] = Field(default_factory=dict, description="Library versions.")
    files: list[FileEntry]
    summary: dict[str, Any] = Field(default_factory=dict)
    seconds: float = Field(ge=0)
    created_at: datetime

    def digest(self) -> str:
        """SHA-256 of what this stage made and from what, whoever made it and when."""
        content = self.model_dump(mode="json", include={"stage", "key", "inputs", "parameters", "files"})
        return canonical_digest(content)


def canonical_digest(value: Any) -> str:
    """SHA-256 (hex) of a JSON value with sorted keys and no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
