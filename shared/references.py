"""Which stage outputs somebody needs: those of jobs and drafts, and everything that they were made from."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import ValidationError

from shared.artifact_store import LocalArtifactStore
from shared.ids import is_id
from shared.job_store import JobStore
from shared.manifests import set_aside_manifests
from shared.schemas.job import JobRecord
from shared.schemas.manifest import Manifest
from shared.schemas.registry import DraftRecord
from shared.state_machine import TERMINAL
from shared.stored_documents import read_document

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
EXPIRING = "manifest.expiring.json"  # a manifest that retention has taken back, so that nobody reuses it
CHUNK = 500


@dataclass
class References:
    """Stage folders (`stages/STAGE/KEY`).

    Attributes:
        needed: those whose outputs a job or a draft refers to, directly or through its inputs.
        open: those of jobs that may go on, finished or not.
        unknown: jobs and drafts whose record cannot be read now; while there are some, nothing is known for sure.
        manifests: every finished stage's manifest by its folder; None for one that cannot be read.
    """

    needed: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    manifests: dict[str, Manifest | None] = field(default_factory=dict)


def read_references(jobs: JobStore) -> References:
    """Read all records, drafts and manifests."""
    store = jobs.artifacts
    found = References(manifests=read_manifests(store))
    known = set()
    for record in _records(jobs):
        known.add(record.id)
        prefixes = {f"stages/{stage.name}/{stage.key}" for stage in record.stages if stage.key}
        found.needed |= prefixes
        if record.status not in TERMINAL:
            found.open |= prefixes
    stored = (name for name in store.list("jobs") if is_id(name, "job"))
    found.unknown = [i for i in stored if i not in known and store.exists(f"jobs/{i}/job.json")]
    found.needed |= {prefix for prefix, made in found.manifests.items() if made is None or made.job_id in known}
    for name in store.list("drafts"):
        draft = read_document(store, f"drafts/{name}", DraftRecord, "no stage is cleared away")
        if draft is None:
            found.unknown.append(name)
        else:
            found.needed.add(_folder(draft.manifest))
    _add_inputs(store, found)
    return found


def read_manifests(store: LocalArtifactStore) -> dict[str, Manifest | None]:
    """Every finished stage's manifest by its folder; None for one that cannot be read."""
    manifests: dict[str, Manifest | None] = {}
    for stage in store.list("stages"):
        for key in store.list(f"stages/{stage}"):
            prefix = f"stages/{stage}/{key}"
            for name in (MANIFEST, EXPIRING):
                try:
                    manifests[prefix] = Manifest.model_validate_json(store.read(f"{prefix}/{name}"))
                    break
                except KeyError:
                    continue
                except ValidationError:
                    log.error("%s/%s cannot be read: it is kept", prefix, name)
                    manifests[prefix] = None
    return manifests


def _records(jobs: JobStore) -> Iterable[JobRecord]:
    ids = jobs.list_ids()
    for start in range(0, len(ids), CHUNK):
        yield from jobs.get_many(ids[start : start + CHUNK])


def _add_inputs(store: LocalArtifactStore, found: References) -> None:
    """Add what the needed stages were made from, and what that was made from, to the first.

    A digest names an input as it was; a stage that was made anew since, after files were lost, is found by its key.
    """
    by_digest = {manifest.digest(): prefix for prefix, manifest in found.manifests.items() if manifest is not None}
    waiting = list(found.needed)
    while waiting:
        prefix = waiting.pop()
        holding = found.manifests.get(prefix)
        for manifest in [holding] if holding else [made for _, made in set_aside_manifests(store, prefix)]:
            inputs = {by_digest[digest] for digest in manifest.inputs.values() if digest in by_digest}
            inputs |= {_folder(made.manifest) for made in manifest.lineage.stages.values()}
            inputs |= {_folder(manifest.lineage.compare.manifest)} if manifest.lineage.compare else set()
            waiting += inputs - found.needed
            found.needed |= inputs


def _folder(manifest_key: str) -> str:
    return manifest_key.rpartition("/")[0]
