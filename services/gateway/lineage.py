"""What a draft was made from: the tree of manifests, from the draft back to the files of its datasets.

In: a draft's record. Out: a `LineageNode` for each thing, with `verified`: the stored manifest has the digest that was
named, its own inputs are described as they are hashed, and its files are there with their sizes (or, where all content
is to be read again, with their SHA-256). What several things were made from is shown in full once, then by reference.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from shared.artifact_store import LocalArtifactStore
from shared.dataset_kinds import read_dataset
from shared.integrity import changed
from shared.manifests import read_manifest, set_aside_manifests
from shared.schemas.job import Stage
from shared.schemas.manifest import DatasetInput, FileEntry, Lineage, Manifest, StageInput, VerifierIdentity
from shared.schemas.registry import DraftRecord

PROBLEMS_SHOWN = 20


class LineageNode(BaseModel):
    """One thing that a draft was made from, and what that was made from in turn."""

    kind: Literal["draft", "stage", "dataset", "file", "verifier"]
    name: str = Field(description="The stage, or what people call it.")
    digest: str = Field(description="SHA-256 by which it is named.")
    verified: bool = Field(description="Whether it is still what was named.")
    problems: list[str] = Field(default_factory=list, description="What is not.")
    files: int | None = None
    bytes: int | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    ref: bool = Field(False, description="Whether it stands elsewhere in the tree in full.")
    inputs: list["LineageNode"] = Field(default_factory=list)


class LineageView(BaseModel):
    """The lineage of a draft."""

    object: Literal["lineage"] = "lineage"
    draft: str
    checked: Literal["sizes", "content"]
    verified: bool = Field(description="Whether every node is.")
    tree: LineageNode


def draft_lineage(store: LocalArtifactStore, record: DraftRecord, *, rehash: bool) -> LineageView:
    """The whole tree of a draft; with `rehash` every file is read again, which takes its time."""
    walk = LineageWalk(store, rehash)
    tree = walk.draft(record)
    if len({digest for kind, _, digest in walk.seen if kind == "verifier"}) > 1:
        tree.verified, tree.problems = False, ["its stages name different verifiers"]
    verified = tree.verified and all(node.verified for node in walk.seen.values())
    return LineageView(draft=record.id, checked="content" if rehash else "sizes", verified=verified, tree=tree)


class LineageWalk:
    """Goes from a draft to its origins.

    Attributes:
        seen: the nodes so far, by kind, name and digest.
    """

    def __init__(self, store: LocalArtifactStore, rehash: bool) -> None:
        self.store, self.rehash = store, rehash
        self.seen: dict[tuple[str, str, str], LineageNode] = {}

    def draft(self, record: DraftRecord) -> LineageNode:
        """A draft, made by its publish stage."""
        manifest = read_manifest(self.store, record.manifest)
        digest = record.digest or (manifest.digest() if manifest else "")
        made = StageInput.model_construct(manifest=record.manifest, digest=digest)
        facts = {
            "job": record.job_id,
            "verifier": record.verifier,
            "gate": record.gate,
            "created_at": record.created_at,
        }
        return LineageNode(
            kind="draft",
            name=record.id,
            digest=digest,
            verified=True,
            facts=facts,
            inputs=[self._stage(Stage.PUBLISH, made)],
        )

    def _stage(self, stage: Stage, made: StageInput) -> LineageNode:
        if (known := self._reference("stage", stage, made.digest)) is not None:
            return known
        manifest, problems = self._find(made)
        node = self._remember(LineageNode(kind="stage", name=stage, digest=made.digest, verified=False))
        if manifest is not None:
            problems += [*_misdescribed(manifest), *self._file_problems(manifest.root, manifest.files)]
            node.files, node.bytes = len(manifest.files), sum(entry.size for entry in manifest.files)
            node.facts, node.inputs = _stage_facts(manifest), list(self._inputs(manifest.lineage))
        node.verified, node.problems = not problems, problems[:PROBLEMS_SHOWN]
        return node

    def _find(self, made: StageInput) -> tuple[Manifest | None, list[str]]:
        """The manifest that was named, also where it was set aside; and what is wrong with that."""
        stored = read_manifest(self.store, made.manifest)
        if stored is not None and stored.digest() == made.digest:
            return stored, []
        for _, manifest in set_aside_manifests(self.store, made.manifest.rpartition("/")[0]):
            if manifest.digest() == made.digest:
                return manifest, ["files of it were lost later; the stage was or will be made again"]
        if stored is None:
            return None, [f"its manifest {made.manifest} is gone"]
        return stored, [f"the stored manifest has another digest, {stored.digest()[:12]}"]

    def _inputs(self, lineage: Lineage) -> Iterator[LineageNode]:
        for stage in sorted(lineage.stages, key=list(Stage).index, reverse=True):
            yield self._stage(stage, lineage.stages[stage])
        for dataset in lineage.datasets.values():
            yield self._dataset(dataset)
        if lineage.compare is not None:
            yield self._compared(lineage.compare)
        if lineage.verifier is not None:
            yield self._verifier(lineage.verifier)

    def _dataset(self, named: DatasetInput) -> LineageNode:
        if (known := self._reference("dataset", named.id, named.sha256)) is not None:
            return known
        node = self._remember(LineageNode(kind="dataset", name=named.id, digest=named.sha256, verified=True))
        node.facts = {"name": named.name}
        record = read_dataset(self.store, named.id)
        if record is None or record.sha256 != named.sha256:
            what = "was deleted" if record is None else f"has another SHA-256 now, {record.sha256[:12]}"
            node.verified, node.problems = False, [f"the dataset {what}"]
            node.inputs = [LineageNode(kind="file", name=f.name, digest=f.sha256, verified=False) for f in named.files]
            return node
        node.files, node.bytes, node.facts["rows"] = len(record.files), record.bytes, record.rows
        for file in record.files:
            entry = FileEntry(path=file.path, size=file.bytes, sha256=file.sha256)
            problems = self._file_problems(f"datasets/{record.id}", [entry])
            key = ("file", file.name, file.sha256)
            self.seen[key] = LineageNode(
                kind="file",
                name=file.name,
                digest=file.sha256,
                verified=not problems,
                problems=problems,
                bytes=file.bytes,
                facts={"rows": file.rows, "format": file.format, "weight": file.weight},
            )
            node.inputs.append(self.seen[key])
        return node

    def _compared(self, made: StageInput) -> LineageNode:
        """Another draft: checked itself, and not followed further; it has a lineage of its own."""
        manifest, problems = self._find(made)
        if manifest is not None:
            problems += self._file_problems(manifest.root, manifest.files)
        facts = {} if manifest is None else {"verifier": manifest.summary.get("verifier"), "compared_with": True}
        node = LineageNode(
            kind="draft", name="compare", digest=made.digest, verified=not problems, problems=problems, facts=facts
        )
        return self._remember(node)

    def _verifier(self, identity: VerifierIdentity) -> LineageNode:
        if (known := self._reference("verifier", identity.name, identity.fingerprint)) is not None:
            return known
        facts = identity.model_dump(exclude={"name", "files"})
        node = LineageNode(kind="verifier", name=identity.name, digest=identity.fingerprint, verified=True, facts=facts)
        return self._remember(node)

    def _file_problems(self, root: str, files: list[FileEntry]) -> list[str]:
        damages = changed(self.store.place(root), files) if self.rehash else self.store.damages(root, files)
        return [str(damage) for damage in damages]

    def _remember(self, node: LineageNode) -> LineageNode:
        self.seen[(node.kind, node.name, node.digest)] = node
        return node

    def _reference(self, kind: str, name: str, digest: str) -> LineageNode | None:
        known = self.seen.get((kind, name, digest))
        return known and LineageNode(
            kind=known.kind, name=known.name, digest=known.digest, verified=known.verified, ref=True
        )


def _misdescribed(manifest: Manifest) -> list[str]:
    """Inputs whose description in the manifest is not what the manifest's digest covers."""
    lineage = manifest.lineage
    described = {str(name): made.digest for name, made in lineage.stages.items()}
    described |= {name: dataset.sha256 for name, dataset in lineage.datasets.items()}
    if lineage.verifier is not None:
        described["verifier"] = lineage.verifier.fingerprint
    if lineage.compare is not None:
        described["compare"] = lineage.compare.digest
    differing = sorted(_differing(described, manifest.inputs))
    return [f"its manifest describes {name} as another than it names by hash" for name in differing]


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def _stage_facts(manifest: Manifest) -> dict[str, Any]:
    lineage = manifest.lineage
    facts = {
        "key": manifest.key,
        "job_id": manifest.job_id,
        "created_at": manifest.created_at,
        "seconds": manifest.seconds,
        "accounting": manifest.summary.get("accounting"),
        "sampling": lineage.sampling.model_dump() if lineage.sampling else None,
        "layer_ids": lineage.layer_ids,
        "seed": lineage.seed,
        "versions": manifest.versions,
    }
    return {name: value for name, value in facts.items() if value is not None}
