"""Tags of drafts in the artifact store. A tag names one draft at a time; below `draft-tags/TAG/`:

    0000000001.json    `TagMove`: the draft that the tag was put on, or none when it was taken off

The highest number holds. A move is the exclusive creation of the next number, so of two at once one is first, the other
second, and the tag ends on exactly one draft. The latest moves are kept: they say what a tag named before.
"""

import logging
import re
from datetime import datetime

from pydantic import ValidationError

from services.gateway.problems import Problem
from shared.artifact_store import LocalArtifactStore
from shared.schemas.job import now
from shared.schemas.spec import Document

log = logging.getLogger(__name__)
FOLDER = "draft-tags"
MOVES_KEPT = 20
MOST_CONFLICTS = 32
TAG_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"


class TagMove(Document):
    """One change of a tag."""

    draft: str | None
    at: datetime


class DraftTags:
    """All reads and writes of tags."""

    def __init__(self, store: LocalArtifactStore) -> None:
        self.store = store

    def draft_of(self, tag: str) -> str | None:
        """Id of the draft that has a tag; None too for what no tag can be called."""
        return self._latest(tag)[1] if re.fullmatch(TAG_PATTERN, tag) else None

    def by_draft(self) -> dict[str, list[str]]:
        """Tags of each draft that has some, sorted."""
        found: dict[str, list[str]] = {}
        for tag in self.store.list(FOLDER):
            draft = self.draft_of(tag)
            if draft is not None:
                found.setdefault(draft, []).append(tag)
        return found

    def put(self, tag: str, draft_id: str) -> tuple[int, str | None]:
        """Put a tag on a draft, wherever it was, even there.

        Returns:
            The number of this move, and the draft that had the tag before.

        Raises:
            Problem: 409, others move it again and again.
        """
        for _ in range(MOST_CONFLICTS):
            number, before = self._latest(tag)
            if self.advance(tag, number, draft_id):
                return number + 1, before
        raise _contended(tag)

    def take_off(self, tag: str, draft_id: str) -> bool:
        """Take a tag off a draft; False when the draft does not have it.

        Raises:
            Problem: 409, others move it again and again.
        """
        for _ in range(MOST_CONFLICTS):
            number, holder = self._latest(tag)
            if holder != draft_id:
                return False
            if self.advance(tag, number, None):
                return True
        raise _contended(tag)

    def advance(self, tag: str, number: int, draft_id: str | None) -> bool:
        """Make the move that follows `number`; False when somebody else has made it."""
        move = TagMove(draft=draft_id, at=now())
        if not self.store.create(_key(tag, number + 1), move.model_dump_json().encode()):
            return False
        for old in self._numbers(tag):
            if old <= number - MOVES_KEPT:
                self.store.delete(_key(tag, old))
        return True

    def _latest(self, tag: str) -> tuple[int, str | None]:
        for _ in range(MOST_CONFLICTS):
            number = max(self._numbers(tag), default=0)
            if number == 0:
                return 0, None
            try:
                return number, TagMove.model_validate_json(self.store.read(_key(tag, number))).draft
            except KeyError:  # so many moves since that this one was cleared away
                continue
            except ValidationError:
                log.error("%s in the artifact store cannot be read: the tag counts as taken off", _key(tag, number))
                return number, None
        raise _contended(tag)

    def _numbers(self, tag: str) -> list[int]:
        names = [name.removesuffix(".json") for name in self.store.list(f"{FOLDER}/{tag}")]
        return [int(name) for name in names if name.isdigit()]


def _key(tag: str, number: int) -> str:
    return f"{FOLDER}/{tag}/{number:010}.json"


def _contended(tag: str) -> Problem:
    return Problem(409, f"others move the tag {tag!r} at this moment; ask again", headers={"Retry-After": "1"})
