"""The documents that supervisor and stage process exchange: `run.json` in, `result.json` out."""

import os
from pathlib import Path

from pydantic import Field

from shared.schemas.job import ErrorDetail, Stage
from shared.schemas.manifest import FileEntry
from shared.schemas.spec import Document, JobSpec, JsonObject

STORE_UNUSABLE = os.EX_IOERR  # exit code of a stage that could not even write its result


class StoredOutput(Document):
    """What some stage run left in the store."""

    manifest: Path = Field(description="Its manifest.")
    folder: Path = Field(description="The folder with its files.")


class StageRun(Document):
    """What a stage process is started with; the fields are those of `StageContext`, and what it checks before."""

    job_id: str
    stage: Stage
    token: str
    spec: JobSpec
    inputs: dict[str, Path]
    input_digests: dict[str, str] = Field(default_factory=dict, description="What each input must be, by name.")
    upstream: dict[str, StoredOutput] = Field(default_factory=dict, description="Inputs that other stages made.")
    damaged: list[StoredOutput] = Field(default_factory=list, description="Earlier outputs of this key, now damaged.")
    out: Path
    work: Path
    previous: list[Path]
    siblings: list[Path] = Field(default_factory=list)
    exchange: Path
    endpoint: str | None = None
    served_model: str | None = None
    gpus: list[str] = Field(default_factory=list)
    gpu_verifier: bool = False


class StageResult(Document):
    """What a stage process leaves behind: its files with their hashes and a summary, or an error."""

    error: ErrorDetail | None = None
    damaged_inputs: list[str] = Field(default_factory=list, description="Inputs that are not what they were.")
    files: list[FileEntry] = Field(default_factory=list)
    summary: JsonObject = Field(default_factory=dict)
    seconds: float = Field(ge=0)
