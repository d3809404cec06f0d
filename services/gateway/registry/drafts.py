"""Drafts of the registry: finding them, promoting them by tags, deleting them.

    drafts/ID.json             a draft that exists
    draft-deletions/ID.TOKEN   somebody is deleting it; one that is older than `INTENT_LIFE_S` is a dead gateway's
    deleted-drafts/ID.json     what a deleted draft was; its files are left to retention

A draft with a tag is never deleted, and a tag never put on a deleted draft, with any number of gateways. Who deletes
says so first and then looks for tags; who tags puts the tag on first and then looks for a deletion. So at least one of
two sees the other, and gives way.
"""

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime

from services.gateway.problems import Problem, shortened
from services.gateway.registry.tags import DraftTags
from shared.artifact_store import LocalArtifactStore
from shared.ids import is_id, new_id
from shared.schemas.job import JobRecord
from shared.schemas.registry import DraftRecord
from shared.stored_documents import read_document

FOLDER, DELETIONS, DELETED = "drafts", "draft-deletions", "deleted-drafts"
INTENT_LIFE_S = 600.0


class DraftRegistry:
    """The drafts of one artifact store."""

    def __init__(self, store: LocalArtifactStore) -> None:
        self.store, self.tags = store, DraftTags(store)

    def all(self) -> list[DraftRecord]:
        """Every draft, newest first."""
        names = [name.removesuffix(".json") for name in self.store.list(FOLDER)]
        records = [record for name in names if is_id(name, "draft") and (record := self.get(name))]
        return sorted(records, key=lambda record: (record.created_at, record.id), reverse=True)

    def get(self, draft_id: str) -> DraftRecord | None:
        """The draft with this id; None where there is none, or its record cannot be read."""
        return read_document(self.store, _key(draft_id), DraftRecord)

    def find(self, name: str, source: str = "path", pointer: str = "/draft_id") -> DraftRecord:
        """The draft with this id or tag.

        Args:
            source, pointer: where it was named, for whoever is told that there is none.

        Raises:
            Problem: 404, there is none; says when it was deleted.
        """
        draft_id = name if is_id(name, "draft") else self.tags.draft_of(name)
        record = self.get(draft_id) if draft_id else None
        if record is None:
            raise self._absent(name, draft_id, source, pointer)
        return record

    def of_job(self, record: JobRecord) -> DraftRecord:
        """The draft that a job has published.

        Raises:
            Problem: 409 where it has none (yet); 404 where the draft was deleted.
        """
        if record.draft is None:
            raise Problem(409, f"the job has no draft: it is {record.status}; a job that succeeds has one")
        return self.find(record.draft, "job", "/draft")

    def promote(self, record: DraftRecord, tag: str) -> None:
        """Put a tag on a draft, wherever it was before.

        Raises:
            Problem: 409, the draft missed its gate, or is being deleted.
        """
        if record.gate == "failed":
            failures = "; ".join(record.evaluation.get("gate", {}).get("failures", [])) or "see its evaluation"
            raise Problem(
                409,
                f"the draft {record.id} missed its gate ({failures}), and a draft that failed is never promoted: tag "
                "one that passed, or train one that does",
            )
        number, before = self.tags.put(tag, record.id)
        if self._is_going(record.id):
            if self.tags.advance(tag, number, before) and before is not None and self._is_going(before):
                self.tags.advance(tag, number + 1, None)
            raise Problem(409, f"the draft {record.id} is being deleted, so it gets no tag")

    def delete(self, record: DraftRecord, require_unused: Callable[[], None]) -> None:
        """Delete a draft; what only it refers to is left to retention.

        Args:
            require_unused: raises where something beside tags still needs the draft.

        Raises:
            Problem: 409, it has tags.
        """
        intent = f"{DELETIONS}/{record.id}.{new_id('gw')}"
        started = time.monotonic()
        self.store.write(intent, b"")
        try:
            tags = self.tags.by_draft().get(record.id)
            if tags:
                names = ", ".join(tags)
                raise Problem(409, f"the draft {record.id} has tags ({names}): take them off, or put them on another")
            require_unused()
            if time.monotonic() - started > INTENT_LIFE_S / 2:  # somebody may take us for dead soon
                raise Problem(503, "the store is too slow to delete the draft safely; ask again")
            self._remove(record.id)
        finally:
            self.store.delete(intent)

    def _remove(self, draft_id: str) -> None:
        try:
            self.store.move(_key(draft_id), f"{DELETED}/{draft_id}.json")
        except KeyError:
            raise self._absent(draft_id, draft_id, "path", "/draft_id") from None

    def _is_going(self, draft_id: str) -> bool:
        """Whether a draft is being deleted, or is gone. In this order: a deletion removes it before it ends."""
        moment = self.store.now()
        for name in self.store.list(DELETIONS):
            if name.startswith(f"{draft_id}."):
                try:
                    _, since = self.store.measure(f"{DELETIONS}/{name}")
                except KeyError:  # it has just ended
                    continue
                if moment - since < INTENT_LIFE_S:
                    return True
                self.store.delete(f"{DELETIONS}/{name}")
        return not self.store.exists(_key(draft_id))

    def _absent(self, name: str, draft_id: str | None, source: str, pointer: str) -> Problem:
        """There is no such draft; for one that was deleted, since when."""
        detail = f"there is no draft {shortened(name)!r}"
        with contextlib.suppress(KeyError, FileNotFoundError):
            path = self.store.path(f"{DELETED}/{draft_id}.json")
            deleted_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            job = DraftRecord.model_validate_json(path.read_bytes()).job_id
            detail = (
                f"the draft {draft_id} was deleted on {deleted_at:%Y-%m-%d at %H:%M:%S} UTC; a new job of the document "
                f"of {job} makes it again, from what is left of that job's stages"
            )
        return Problem(404, detail, errors=[{"source": source, "pointer": pointer, "message": detail}])


def _key(draft_id: str) -> str:
    return f"{FOLDER}/{draft_id}.json"
