"""Composes a dataset of uploaded ones: their files become its own, by hard link, with names and weights."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field, ValidationError, model_validator

from services.gateway.problems import Problem
from shared.artifact_store import LocalArtifactStore, link_or_copy
from shared.dataset_kinds import read_dataset
from shared.ids import is_id, new_id
from shared.schemas.job import now
from shared.schemas.registry import DatasetFile, DatasetRecord, files_digest
from shared.schemas.spec import Document, Name

MAX_SOURCES = 64
JSONL_HINT = "application/json composes a dataset of uploaded ones; send rows as application/x-ndjson"


class Source(Document):
    """One uploaded dataset in a composition."""

    dataset: str = Field(pattern=r"^ds_", max_length=64, description="Id of an uploaded dataset of one file.")
    name: Name | None = Field(None, description="Absent: the dataset's name.")
    weight: float | None = Field(
        None,
        gt=0,
        le=1e9,
        allow_inf_nan=False,
        description="Share among the kept conversations; absent: 1 where another source has one, else all rows.",
    )


class Composition(Document):
    """A dataset of several sources."""

    name: Name = Field("dataset", description="A name for people.")
    sources: list[Source] = Field(min_length=1, max_length=MAX_SOURCES)

    @model_validator(mode="after")
    def weights_for_all_or_none(self) -> "Composition":
        if any(source.weight is not None for source in self.sources):
            for source in self.sources:
                if source.weight is None:
                    source.weight = 1.0
        return self


def read_composition(document: dict[str, Any]) -> Composition:
    """Check the form of a composition.

    Raises:
        Problem: it is a row of a dataset, sent with the wrong type.
        pydantic.ValidationError
    """
    try:
        return Composition.model_validate(document)
    except ValidationError:
        if "sources" not in document:
            raise Problem(422, f"the body has no sources: {JSONL_HINT}") from None
        raise


def compose_dataset(store: LocalArtifactStore, composition: Composition) -> DatasetRecord:
    """Make the composed dataset: first the files, then the record that makes it visible.

    Raises:
        Problem: 422 where a source is not there, has several files or is not of conversations, or two have one name.
        ArtifactStoreError
    """
    origins = [_origin(store, source, place) for place, source in enumerate(composition.sources)]
    files = list(_entries(composition, origins))
    record = DatasetRecord(
        id=new_id("ds"),
        name=composition.name,
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
        sha256=files_digest(files),
        files=files,
        created_at=now(),
    )
    try:
        for file, origin in zip(files, origins, strict=True):
            source = store.path(f"datasets/{origin.id}/{origin.files[0].path}")
            link_or_copy(source, store.folder(f"datasets/{record.id}/files") / file.path.removeprefix("files/"))
        store.publish(f"datasets/{record.id}/files")
        store.create(f"datasets/{record.id}/dataset.json", record.model_dump_json().encode())
    except BaseException:
        store.delete(f"datasets/{record.id}")
        raise
    return record


def _origin(store: LocalArtifactStore, source: Source, place: int) -> DatasetRecord:
    pointer = f"/sources/{place}/dataset"
    record = read_dataset(store, source.dataset) if is_id(source.dataset, "ds") else None
    if record is None:
        raise _refused(pointer, f"there is no dataset {source.dataset!r}; upload it first")
    if record.kind != "conversations" or len(record.files) != 1:
        what = f"is composed of {len(record.files)} files" if len(record.files) > 1 else f"holds {record.kind}"
        raise _refused(pointer, f"the dataset {record.id} {what}: sources are uploaded files of rows")
    return record


def _entries(composition: Composition, origins: list[DatasetRecord]) -> Iterator[DatasetFile]:
    names: dict[str, int] = {}
    for place, (source, origin) in enumerate(zip(composition.sources, origins, strict=True)):
        name = source.name or origin.name
        if name in names:
            message = f"the name {name} is that of /sources/{names[name]} already; give each source its own"
            raise _refused(f"/sources/{place}/name", message)
        names[name] = place
        file = origin.files[0]
        path = file.path.replace("files/0", f"files/{place}", 1)
        yield file.model_copy(update={"path": path, "name": name, "weight": source.weight, "dataset": origin.id})


def _refused(pointer: str, message: str) -> Problem:
    return Problem(422, f"{pointer}: {message}", errors=[{"pointer": pointer, "message": message}])
