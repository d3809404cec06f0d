"""Logs of a job: their ends as text, pages of lines, and a stream of lines that follows the job to its end.

A line's id is `STAGE-ATTEMPT-OFFSET`, the offset being the one behind it: who has a line can ask for what follows it.
"""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
from pydantic import BaseModel, Field
from redis.exceptions import RedisError

from services.gateway.log_lines import read_lines, tail_offset
from services.gateway.paging import unknown_after
from services.gateway.problems import Problem
from services.gateway.sse import Messages, message
from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError
from shared.job_store import JobNotFound, JobStore
from shared.schemas.job import DONE_STAGES, JobRecord, Stage, StageStatus
from shared.stage_logs import LogName, list_logs, log_path
from shared.state_machine import TERMINAL

T = TypeVar("T")
LINE_ID = re.compile(r"^([a-z]+-[0-9]{1,9})-([0-9]{1,18})$")
MAX_TEXT_BYTES = 4 << 20
MAX_PAGE_BYTES = 4 << 20
READ_AT_ONCE = 100
LOOK_S, LOOK_AT_LEAST_S = 0.3, 2.0  # how often a follower looks at a file, soon after it grew and later
READERS = 8


class LogLine(BaseModel):
    """One line of a log."""

    id: str = Field(examples=["train-1-20480"])
    stage: Stage
    attempt: int
    line: str


@dataclass(frozen=True)
class LogFilter:
    """Which logs of a job are wanted."""

    stage: Stage | None = None
    attempt: int | None = None

    def takes(self, name: LogName) -> bool:
        """Whether a log is wanted."""
        return self.stage in (None, name.stage) and self.attempt in (None, name.attempt)


@dataclass(frozen=True)
class Place:
    """Where a reader is: behind so many bytes of a log, and of all logs before it."""

    log: LogName
    offset: int

    def __str__(self) -> str:
        return f"{self.log}-{self.offset}"


def read_text(store: LocalArtifactStore, job_id: str, wanted: LogFilter, tail: int) -> str:
    """The last `tail` lines of each log asked for, of the latest attempt unless one is named; several have headings.

    Raises:
        Problem: 404 where a named stage (or attempt) has no log.
    """
    logs = [name for name in list_logs(store, job_id) if wanted.takes(name)]
    if not logs and (wanted.stage or wanted.attempt):
        raise Problem(404, "there is no such log; a stage has one when it has started")
    latest = [name for name in logs if name.attempt == max(n.attempt for n in logs if n.stage == name.stage)]
    texts = [_tail(log_path(store, job_id, name), tail) for name in latest]
    if wanted.stage:
        return texts[0]
    return "".join(f"==> {name} <==\n{text}" for name, text in zip(latest, texts, strict=True))


def place_after(store: LocalArtifactStore, job_id: str, line_id: str) -> Place:
    """The place behind a line.

    Raises:
        Problem: 422, the job has no such line.
    """
    match = LINE_ID.match(line_id)
    log = LogName.parse(match[1]) if match else None
    if match is None or log is None or log not in list_logs(store, job_id):
        raise unknown_after(line_id)
    return Place(log, int(match[2]))


def first_place(store: LocalArtifactStore, job_id: str, wanted: LogFilter, tail: int) -> Place | None:
    """Where the last `tail` lines of all logs together start; None where there are no logs."""
    place = None
    for name in reversed([name for name in list_logs(store, job_id) if wanted.takes(name)]):
        offset, found = tail_offset(log_path(store, job_id, name), tail)
        place, tail = Place(name, offset), tail - found
        if tail <= 0:
            break
    return place


def read_page(
    store: LocalArtifactStore, record: JobRecord, wanted: LogFilter, place: Place | None, limit: int
) -> tuple[list[LogLine], bool]:
    """At most `limit` whole lines that follow a place, and whether more do.

    Args:
        record: read before, so that what it says has ended is read to its end.
    """
    found: list[LogLine] = []
    size = 0
    while len(found) <= limit and size < MAX_PAGE_BYTES:
        lines = _next_lines(store, record, wanted, place, limit + 1 - len(found))
        if not lines:
            return found, False
        found += [line for line, _ in lines]
        size += sum(len(line.line) for line, _ in lines)
        place = lines[-1][1]
    return found[:limit], True


class LogFollower:
    """Streams logs of jobs. Files are read by a few threads that all readers share, and held by none."""

    def __init__(self, jobs: JobStore) -> None:
        self.jobs = jobs
        self._limiter = anyio.CapacityLimiter(READERS)

    async def follow(self, record: JobRecord, wanted: LogFilter, place: Place | None) -> Messages:
        """The lines behind a place, those that are still to come, and `end` when what is wanted has ended.

        While Redis or the store is away the stream waits.
        """
        wait_s = LOOK_S
        while True:
            try:
                record = await self._in_thread(partial(self.jobs.get, record.id))
                lines = await self._in_thread(
                    partial(_next_lines, self.jobs.artifacts, record, wanted, place, READ_AT_ONCE)
                )
            except JobNotFound:
                yield message("end", {"status": "deleted"})
                return
            except (RedisError, OSError, ArtifactStoreError, KeyError):
                await anyio.sleep(LOOK_AT_LEAST_S)
                continue
            for line, _ in lines:
                yield message("line", line.model_dump_json(exclude={"id"}), line.id)
            if lines:
                place, wait_s = lines[-1][1], LOOK_S
            elif _has_ended(record, wanted):
                yield message("end", {"status": record.status})
                return
            else:
                await anyio.sleep(wait_s)
                wait_s = min(2 * wait_s, LOOK_AT_LEAST_S)

    async def _in_thread(self, action: "partial[T]") -> T:
        return await anyio.to_thread.run_sync(action, limiter=self._limiter)


def _next_lines(
    store: LocalArtifactStore, record: JobRecord, wanted: LogFilter, place: Place | None, most: int
) -> list[tuple[LogLine, Place]]:
    """The next lines that are whole; none where there are none yet.

    Raises:
        KeyError: there is no such log (any more).
    """
    logs = list_logs(store, record.id)
    first = 0
    if place is not None:
        if place.log not in logs:
            raise KeyError(str(place.log))
        first = logs.index(place.log)
    for number, name in enumerate(logs[first:], start=first):
        if not wanted.takes(name):
            continue
        offset = place.offset if place and place.log == name else 0
        complete = number < len(logs) - 1 or not _is_written(record, name)
        if lines := read_lines(log_path(store, record.id, name), offset, most, complete=complete):
            places = [Place(name, line.end) for line in lines]
            return [
                (LogLine(id=str(there), stage=name.stage, attempt=name.attempt, line=line.text), there)
                for line, there in zip(lines, places, strict=True)
            ]
    return []


def _is_written(record: JobRecord, name: LogName) -> bool:
    """Whether a run may still write a log."""
    stage = record.stage(name.stage)
    return record.status not in TERMINAL and stage.status == StageStatus.RUNNING and stage.attempt == name.attempt


def _has_ended(record: JobRecord, wanted: LogFilter) -> bool:
    """Whether nothing more can come of what is wanted."""
    if record.status in TERMINAL:
        return True
    if wanted.stage is None:
        return False
    stage = record.stage(wanted.stage)
    return stage.status in DONE_STAGES or (wanted.attempt is not None and _is_over(stage.attempt, wanted, record))


def _is_over(attempt: int, wanted: LogFilter, record: JobRecord) -> bool:
    assert wanted.stage is not None
    assert wanted.attempt is not None
    running = record.stage(wanted.stage).status == StageStatus.RUNNING
    return attempt > wanted.attempt or (attempt == wanted.attempt and not running)


def _tail(path: Path, lines: int) -> str:
    size = path.stat().st_size
    offset = max(tail_offset(path, lines)[0], size - MAX_TEXT_BYTES)
    texts: list[str] = []
    while offset < size and (found := read_lines(path, offset, lines, complete=True)):
        texts += [f"{line.text}\n" for line in found]
        offset = found[-1].end
    return "".join(texts[-lines:])
