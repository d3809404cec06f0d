"""Manifests: what a finished stage made, from which inputs, byte for byte."""

import hashlib
import json
from datetime import datetime
from typing import Any

from pydantic import Field

from shared.schemas.job import Stage
from shared.schemas.spec import Document, SamplingSpec

SHA256 = r"^[0-9a-f]{64}$"


class FileEntry(Document):
    """One file of a stage."""

    path: str = Field(description="Relative to the manifest's `root`.")
    size: int = Field(ge=0, description="Bytes.")
    sha256: str = Field(pattern=SHA256)


class StageInput(Document):
    """What an earlier stage made."""

    manifest: str = Field(description="Store key of its manifest.")
    digest: str = Field(pattern=SHA256, description="The digest of that manifest.")


class DatasetInputFile(Document):
    """One file of a dataset."""

    name: str
    sha256: str = Field(pattern=SHA256)
    weight: float | None = None


class DatasetInput(Document):
    """An uploaded dataset."""

    id: str
    name: str
    sha256: str = Field(pattern=SHA256)
    files: list[DatasetInputFile] = Field(default_factory=list)


class VerifierIdentity(Document):
    """A verifier by the content of its checkpoint; nothing of it is a path of some machine."""

    name: str = Field(description="Hub id, or the name of its folder.")
    revision: str | None = Field(None, description="As the job pins it.")
    files: dict[str, str] = Field(description="SHA-256 by file; of large weights their size and that of samples.")
    config_sha256: str | None = None
    tokenizer_sha256: str | None = Field(None, description="Over all files of the tokenizer.")
    chat_template_sha256: str | None = None
    weights_sha256: str | None = Field(None, description="Over all files of weights.")

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all files: equal checkpoints have equal fingerprints, whatever they are called."""
        return canonical_digest(self.files)


class Lineage(Document):
    """What the digests in a manifest's `inputs` stand for, so that the tree can be read and walked."""

    stages: dict[Stage, StageInput] = Field(default_factory=dict, description="Earlier stages, by name.")
    datasets: dict[str, DatasetInput] = Field(default_factory=dict, description="By the name of the input.")
    compare: StageInput | None = Field(None, description="Another draft that this one is compared with.")
    verifier: VerifierIdentity | None = None
    sampling: SamplingSpec | None = Field(None, description="How answers were sampled.")
    layer_ids: list[int] | None = Field(None, description="Captured layers, the final one last.")
    seed: int | None = None


class Manifest(Document):
    """Written once, exclusively, after every file that it names was written and hashed."""

    stage: Stage
    key: str = Field(description="Content key of the stage.")
    token: str = Field(description="The attempt that won.")
    job_id: str = Field(description="The job whose attempt won; others may reuse it.")
    root: str = Field(description="Store key of the folder that holds the files.")
    inputs: dict[str, str] = Field(description="Digest of each input manifest or document, by name.")
    parameters: dict[str, Any] = Field(description="The parts of the job document that this stage depends on.")
    lineage: Lineage = Field(default_factory=Lineage, description="The inputs in full.")
    versions: dict[str, str] = Field(default_factory=dict, description="Library versions.")
    files: list[FileEntry]
    summary: dict[str, Any] = Field(default_factory=dict)
    seconds: float = Field(ge=0)
    created_at: datetime

    def digest(self) -> str:
        """SHA-256 of what this stage made and from what, whoever made it, where and when."""
        content = self.model_dump(mode="json", include={"stage", "key", "inputs", "parameters", "files"})
        return canonical_digest(content)


def canonical_digest(value: Any) -> str:
    """SHA-256 (hex) of a JSON value with sorted keys and no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
