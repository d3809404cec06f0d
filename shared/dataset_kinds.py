"""What a job can do with the kinds of datasets: conversations, ready-made rows, vocabularies."""

from collections.abc import Iterator

from shared.artifact_store import LocalArtifactStore
from shared.data.ready_folder import states_names
from shared.schemas.job import Stage
from shared.schemas.registry import DatasetRecord
from shared.schemas.spec import JobSpec
from shared.stored_documents import read_document


def read_dataset(store: LocalArtifactStore, dataset_id: str) -> DatasetRecord | None:
    """The record of a dataset; None where there is none, or it cannot be read."""
    return read_document(store, f"datasets/{dataset_id}/dataset.json", DatasetRecord)


def kind_problems(spec: JobSpec, store: LocalArtifactStore) -> Iterator[tuple[str, str]]:
    """Yield a JSON pointer and a message for each dataset that cannot be used where the document names it."""
    record = read_dataset(store, spec.data.dataset)
    if record is not None and record.kind == "vocabulary":
        yield "/data/dataset", f"{record.id} is a vocabulary, which draft.vocabulary names: give prompts or rows here"
    if record is not None and record.kind == "rows" and spec.data.generate:
        yield "/data/generate", f"{record.id} holds rows whose answers are written already: set it to false"
    for place, suite in enumerate(spec.evaluate.suites):
        named = read_dataset(store, suite.dataset) if suite.dataset else None
        if named is not None and named.kind != "conversations":
            pointer = f"/evaluate/suites/{place}/dataset"
            yield pointer, f"{named.id} is of the kind {named.kind}: a suite needs prompts or conversations"


def rows_without_states(spec: JobSpec, store: LocalArtifactStore) -> int | None:
    """How many ready-made rows bring no hidden states, where that is more than may be left out; None where the dataset
    is not of ready-made rows, and the verifier has to read it at least."""
    record = read_dataset(store, spec.data.dataset)
    if record is None or record.kind != "rows":
        return None
    missing = record.rows - len(states_names(file.name for file in record.files))
    return missing if missing > spec.data.max_bad_fraction * record.rows else 0


def reads_dataset(stage: Stage, name: str, record: DatasetRecord) -> bool:
    """Whether a stage reads a dataset that the job names as `dataset`, `vocabulary` or `suite:NAME`."""
    if name == "dataset":  # ready-made rows bring the hidden states that generate passes on
        return stage == Stage.PREPARE or (stage == Stage.GENERATE and record.kind == "rows")
    return stage == (Stage.VOCAB if name == "vocabulary" else Stage.EVALUATE)


def text_bytes(record: DatasetRecord) -> int:
    """Bytes of what the prepare stage reads: all but hidden states."""
    return sum(file.bytes for file in record.files if file.format != "safetensors") if record.files else record.bytes


def new_states_share(spec: JobSpec, record: DatasetRecord) -> float:
    """Share of the rows whose hidden states a job writes anew; the others are linked from the dataset."""
    if record.kind != "rows" or spec.capture.dtype != "auto":
        return 1.0
    return 1 - len(states_names(file.name for file in record.files)) / record.rows


def has_all_states(record: DatasetRecord) -> bool:
    """Tell whether a dataset is of ready-made rows that all bring their hidden states."""
    return record.kind == "rows" and record.rows <= len(states_names(file.name for file in record.files))
