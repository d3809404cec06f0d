"""Where the documents that drafts were made from differ, field by field.

In: drafts. Out: the fields that are not equal, by JSON pointer into the resolved job document. A draft outlives its
job; where a job is gone, the manifests of its stages still hold every field that shaped the draft, and all drafts are
compared on those.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, Field

from shared.artifact_store import LocalArtifactStore
from shared.job_store import JobNotFound, JobStore
from shared.manifests import read_manifest
from shared.presets import merge
from shared.schemas.job import Stage
from shared.schemas.manifest import Manifest
from shared.schemas.registry import DraftRecord


class Difference(BaseModel):
    """A field that is not equal in all documents."""

    path: str = Field(description="JSON pointer into the resolved job document.", examples=["/train/lr"])
    values: dict[str, Any] = Field(description="By draft; null: not set, or not there.")


@dataclass(frozen=True)
class DraftOrigin:
    """What a draft was made from.

    Attributes:
        document: the resolved document of its job; None where the job is gone.
        manifests: of its stages, those that can still be read.
    """

    document: dict[str, Any] | None
    manifests: dict[Stage, Manifest] = field(default_factory=dict)

    def prompts(self, suite: str) -> str | None:
        """A digest of what a suite's prompts were taken from; equal ones gave equal prompts. None: not known."""
        evaluate = self.manifests.get(Stage.EVALUATE)
        if evaluate is None:
            return None
        digest = evaluate.inputs.get(f"suite:{suite}") or evaluate.inputs.get(Stage.PREPARE)
        most = evaluate.parameters.get("evaluate", {}).get("max_prompts")
        return digest and f"{digest} {most}"


def read_origin(jobs: JobStore, record: DraftRecord) -> DraftOrigin:
    """Read what a draft was made from, as far as it is still there."""
    try:
        document = jobs.get(record.job_id).spec.model_dump(mode="json")
    except JobNotFound:
        document = None
    return DraftOrigin(document, _manifests(jobs.artifacts, record))


def differences(origins: Mapping[str, DraftOrigin]) -> tuple[list[Difference], list[str]]:
    """Fields that are not equal, sorted as the first document has them; and what had to be left out."""
    gone = [draft for draft, origin in origins.items() if origin.document is None]
    if gone:
        documents = {draft: _shaping_document(origin.manifests) for draft, origin in origins.items()}
        notes = [
            f"the job of {', '.join(gone)} is gone: the documents are compared on the fields that shaped the drafts"
        ]
    else:
        documents = {draft: origin.document or {} for draft, origin in origins.items()}
        notes = []
    flat = {draft: dict(_leaves(document)) for draft, document in documents.items()}
    paths = dict.fromkeys(path for leaves in flat.values() for path in leaves)
    found = []
    for path in paths:
        values = {draft: leaves.get(path) for draft, leaves in flat.items()}
        if any(value != next(iter(values.values())) for value in values.values()):
            found.append(Difference(path=path, values=values))
    return found, notes


def _manifests(store: LocalArtifactStore, record: DraftRecord) -> dict[Stage, Manifest]:
    publish = read_manifest(store, record.manifest)
    if publish is None:
        return {}
    found = {Stage.PUBLISH: publish}
    for stage, made in publish.lineage.stages.items():
        manifest = read_manifest(store, made.manifest)
        if manifest is not None and manifest.digest() == made.digest:
            found[stage] = manifest
    return found


def _shaping_document(manifests: Mapping[Stage, Manifest]) -> dict[str, Any]:
    """The part of a job document that its stages' results depend on, in the document's own form."""
    document: dict[str, Any] = {}
    for stage, manifest in manifests.items():
        given, data = manifest.parameters, {}
        for name, value in given.items():
            if name in ("capture", "draft", "train", "evaluate", "integrations"):
                document[name] = value
            elif stage in (Stage.PREPARE, Stage.GENERATE, Stage.CAPTURE) or name == "sampling":
                data[name] = value
        document = merge(document, {"data": data})
        if (dataset := manifest.lineage.datasets.get("dataset")) is not None:
            document = merge(document, {"data": {"dataset": dataset.id}})
        if (verifier := manifest.lineage.verifier) is not None:
            document["verifier"] = {"model": verifier.name, "revision": verifier.revision}
    return document


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a document that is no object, with its JSON pointer; a list is one value."""
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _leaves(part, f"{path}/{name.replace('~', '~0').replace('/', '~1')}")
    else:
        yield path, value
