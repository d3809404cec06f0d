"""Deletes a dataset that nobody refers to: no job, no draft, no dataset that was composed of it."""

from collections.abc import Iterator

from services.gateway.deps import Backend
from services.gateway.job_listing import require_complete
from services.gateway.problems import Problem
from shared.artifact_store import STAGING, LocalArtifactStore
from shared.dataset_kinds import read_dataset
from shared.ids import new_id
from shared.manifests import read_manifest
from shared.schemas.registry import DatasetRecord, DraftRecord
from shared.schemas.spec import JobSpec
from shared.stored_documents import read_document

CHUNK = 500
NAMED = 5  # so many of those that refer to it are named


def remove_dataset(backend: Backend, record: DatasetRecord) -> None:
    """Delete a dataset: out of sight first, so that no new job can name it, and put back where one was faster.

    Raises:
        Problem: 409, with who refers to it; 503 while an emptied Redis is being filled.
        KeyError: somebody else has deleted it.
    """
    require_complete(backend.rebuilder)
    _require_unused(backend, record)
    folder, trash = f"datasets/{record.id}", f"{STAGING}/{new_id('gone')}"
    backend.artifacts.move(folder, trash)
    try:
        _require_unused(backend, record)
    except BaseException:
        backend.artifacts.move(trash, folder)
        raise
    backend.artifacts.delete(trash)


def _require_unused(backend: Backend, record: DatasetRecord) -> None:
    users = sorted({*_jobs(backend, record.id), *_drafts(backend.artifacts, record), *_composed(backend, record)})
    if not users:
        return
    more = f" and {len(users) - NAMED} more" if len(users) > NAMED else ""
    raise Problem(
        409,
        f"the dataset is used by {', '.join(users[:NAMED])}{more}; delete these first",
        errors=[{"source": "dataset", "pointer": "", "message": user} for user in users[:NAMED]],
    )


def _jobs(backend: Backend, dataset_id: str) -> Iterator[str]:
    ids = backend.jobs.list_ids()
    for start in range(0, len(ids), CHUNK):
        for job in backend.jobs.get_many(ids[start : start + CHUNK]):
            if dataset_id in _named(job.spec):
                yield job.id


def _named(spec: JobSpec) -> set[str | None]:
    return {spec.data.dataset, spec.draft.vocabulary, *(suite.dataset for suite in spec.evaluate.suites)}


def _drafts(store: LocalArtifactStore, record: DatasetRecord) -> Iterator[str]:
    """Drafts whose own stages name the dataset as an input; the job that made one is there as long as it is."""
    for name in store.list("drafts"):
        draft = read_document(store, f"drafts/{name}", DraftRecord)
        if draft is None:
            continue
        waiting, seen = [draft.manifest], set[str]()
        while waiting:
            key = waiting.pop()
            manifest = None if key in seen else read_manifest(store, key)
            seen.add(key)
            if manifest is None:
                continue
            if any(made.id == record.id for made in manifest.lineage.datasets.values()):
                yield draft.id
                break
            waiting += [made.manifest for made in manifest.lineage.stages.values()]


def _composed(backend: Backend, record: DatasetRecord) -> Iterator[str]:
    for name in backend.artifacts.list("datasets"):
        other = read_dataset(backend.artifacts, name)
        if other is not None and other.id != record.id and any(file.dataset == record.id for file in other.files):
            yield other.id
