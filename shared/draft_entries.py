"""A draft's entry in the registry, `drafts/ID.json`: made just before its job ends, taken back if a cancel came first.

An entry belongs to the job that made it. Equal jobs have one draft between them: entries are made and taken back under
the lease of the publish stage, so that no job ends on an entry that another one takes back.
"""

import logging

from shared.errors import ArtifactStoreError
from shared.ids import new_id
from shared.job_store import JobNotFound, JobStore
from shared.schemas.job import Stage
from shared.schemas.manifest import Manifest
from shared.schemas.registry import DraftRecord
from shared.stage_keys import manifest_key, stage_folder, stage_lease
from shared.stored_documents import read_document

log = logging.getLogger(__name__)
ID_CHARACTERS = 20
LEASE_S = 60


def enter_draft(jobs: JobStore, job_id: str, manifest: Manifest) -> str:
    """Enter the draft of a publish stage for a job and return its id; equal stages name the same one.

    An entry that is there stays the job's that names it. One that its job does not name may be taken back: it becomes
    this job's.
    """
    draft = DraftRecord(
        id=_draft_id(manifest.key),
        job_id=job_id,
        verifier=manifest.summary["verifier"],
        algorithm=manifest.summary["algorithm"],
        root=manifest.root,
        manifest=manifest_key(Stage.PUBLISH, manifest.key),
        digest=manifest.digest(),
        bytes=sum(file.size for file in manifest.files),
        evaluation=manifest.summary["evaluation"],
        gate=manifest.summary["gate"],
        created_at=manifest.created_at,
    )
    store, key = jobs.artifacts, _entry(draft.id)
    if store.create(key, _content(draft)):
        return draft.id
    known = read_document(store, key, DraftRecord, "it is written again")
    if known is not None and _names(jobs, known.job_id, draft.id) is not False:
        draft = draft.model_copy(update={"job_id": known.job_id})
    # Its files may have been lost, and been made again elsewhere.
    if known is None or (known.root, known.job_id) != (draft.root, draft.job_id):
        store.write(key, _content(draft))
    return draft.id


def take_back_draft(jobs: JobStore, job_id: str, publish_key: str | None, token: str | None = None) -> None:
    """Remove the entry that a job has made and does not name, since it was cancelled in between.

    A store that is away is not waited for.

    Args:
        publish_key: of the job's publish stage; None: it came to none.
        token: of a run that may hold the lease of the publish stage; it is given back.
    """
    if publish_key is None:
        return
    lease, own = stage_lease(stage_folder(Stage.PUBLISH, publish_key)), token or new_id("gw")
    if not jobs.acquire_keys([lease], own, LEASE_S):  # another run is about to make the entry its own
        return
    draft_id = _draft_id(publish_key)
    try:
        known = read_document(jobs.artifacts, _entry(draft_id), DraftRecord)
        if known is not None and known.job_id == job_id and not _names(jobs, job_id, draft_id):
            jobs.artifacts.delete(_entry(draft_id))
    except ArtifactStoreError as error:
        log.warning("job %s: the draft that it may have entered was not taken back: %s", job_id, error)
    finally:
        jobs.release_keys([lease], own)


def _names(jobs: JobStore, job_id: str, draft_id: str) -> bool | None:
    """Whether a job has ended with a draft; None where there is no such job."""
    try:
        return jobs.get(job_id).draft == draft_id
    except JobNotFound:
        return None


def _draft_id(publish_key: str) -> str:
    return f"draft_{publish_key[:ID_CHARACTERS]}"


def _entry(draft_id: str) -> str:
    return f"drafts/{draft_id}.json"


def _content(draft: DraftRecord) -> bytes:
    return draft.model_dump_json(indent=1).encode()
