"""Events of jobs in the artifact store: what Redis has trimmed or lost is read from here. Below `jobs/ID/events/`:

    AFTER_LAST.jsonl    one event a line, all that followed the event AFTER, up to the event LAST

Files may overlap, where two processes kept the same events at once; a reader takes the one that goes furthest. The last
file is replaced by a longer one until it is long enough, and is never changed after that.
"""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shared.artifact_store import LocalArtifactStore

log = logging.getLogger(__name__)
SEGMENT_BYTES = 64 * 1024
SEGMENT_NAME = re.compile(r"^([0-9]{1,20}-[0-9]{1,20})_([0-9]{1,20}-[0-9]{1,20})\.jsonl$")
START = "0-0"  # before the first event

Entry = tuple[str, dict[str, Any]]


def position(event_id: str) -> tuple[int, int]:
    """An event's id as something that can be compared."""
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)


@dataclass(frozen=True)
class Segment:
    """One file of the archive: the events after `after`, up to `last`."""

    after: str
    last: str

    @property
    def name(self) -> str:
        """Its file name."""
        return f"{self.after}_{self.last}.jsonl"


class EventArchive:
    """Reads and extends the files; any number of processes may do both at once.

    All methods raise `ArtifactStoreError` where the store cannot be used.
    """

    def __init__(self, artifacts: LocalArtifactStore) -> None:
        self.artifacts = artifacts

    def end(self, job_id: str) -> str:
        """Id of the last event that is kept; `START` where none is."""
        return max((segment.last for segment in self._segments(job_id)), key=position, default=START)

    def extend(self, job_id: str, after: str, entries: Sequence[Entry]) -> None:
        """Keep the events that follow `after`, which is where the archive ended."""
        text = "".join(f"{json.dumps({'id': event_id, **fields})}\n" for event_id, fields in entries).encode()
        last, segment, earlier = entries[-1][0], Segment(after, entries[-1][0]), None
        for found in self._segments(job_id):
            if found.last == after and (kept := self._content(job_id, found)) and len(kept) < SEGMENT_BYTES:
                segment, text, earlier = Segment(found.after, last), _ended(kept) + text, found
        self.artifacts.write(_key(job_id, segment), text)
        if earlier is not None:
            self.artifacts.delete(_key(job_id, earlier))

    def read(self, job_id: str, after: str, limit: int, before: str | None = None) -> list[Entry]:
        """At most `limit` events that follow `after`, oldest first, of those that come before the event `before`."""
        found: list[Entry] = []
        for event_id, fields in self._follow(job_id, after):
            if len(found) == limit or (before is not None and position(event_id) >= position(before)):
                break
            found.append((event_id, fields))
        return found

    def _follow(self, job_id: str, after: str) -> Iterator[Entry]:
        here = after
        while (segment := self._next(job_id, here)) is not None:
            content = self._content(job_id, segment)
            if content is None:  # replaced by a longer one since it was listed
                continue
            for event_id, fields in _entries(content):
                if position(event_id) > position(here):
                    yield event_id, fields
            here = segment.last

    def _next(self, job_id: str, after: str) -> Segment | None:
        """The file that has what follows `after`, and goes furthest; else the first one that begins later."""
        here = position(after)
        later = [segment for segment in self._segments(job_id) if position(segment.last) > here]
        covering = [segment for segment in later if position(segment.after) <= here]
        if covering:
            return max(covering, key=lambda segment: position(segment.last))
        return min(later, key=lambda segment: position(segment.after), default=None)

    def _segments(self, job_id: str) -> list[Segment]:
        names = (SEGMENT_NAME.match(name) for name in self.artifacts.list(_folder(job_id)))
        return [Segment(match[1], match[2]) for match in names if match]

    def _content(self, job_id: str, segment: Segment) -> bytes | None:
        try:
            return self.artifacts.read(_key(job_id, segment))
        except KeyError:
            return None


def _ended(content: bytes) -> bytes:
    """A file that was cut, with its last line ended, so that it costs no other one."""
    return content if content.endswith(b"\n") else content + b"\n"


def _entries(content: bytes) -> Iterator[Entry]:
    """The events of a file; a line that is damaged costs itself only."""
    for line in content.split(b"\n"):
        if line:
            try:
                fields = json.loads(line)
                yield fields.pop("id"), fields
            except (ValueError, KeyError, AttributeError):
                log.error("an event in the artifact store cannot be read: %r", line[:200])


def _folder(job_id: str) -> str:
    return f"jobs/{job_id}/events"


def _key(job_id: str, segment: Segment) -> str:
    return f"{_folder(job_id)}/{segment.name}"
