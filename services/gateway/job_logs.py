"""Logs of a job: the worker writes `jobs/ID/logs/STAGE-ATTEMPT.log`; here their ends are read."""

import os
from pathlib import Path

from services.gateway.problems import Problem
from shared.artifact_store import LocalArtifactStore
from shared.schemas.job import Stage

MAX_TAIL_BYTES = 4 << 20


def read_logs(store: LocalArtifactStore, job_id: str, stage: Stage | None, attempt: int | None, tail: int) -> str:
    """The last `tail` lines of the logs asked for; with several, each has a heading.

    Raises:
        Problem: 404 where a named stage (or attempt) has no log.
    """
    attempts = _attempts(store, job_id)
    stages = [stage] if stage else list(attempts)
    wanted = [
        (name, attempt or max(attempts[name]))
        for name in stages
        if attempts.get(name) and (attempt is None or attempt in attempts[name])
    ]
    if not wanted and (stage or attempt):
        raise Problem(404, "there is no such log; a stage has one when it has started")
    texts = [_tail(store.path(_key(job_id, *log)), tail) for log in wanted]
    if stage:
        return texts[0]
    return "".join(f"==> {name}-{n} <==\n{text}" for (name, n), text in zip(wanted, texts, strict=True))


def _attempts(store: LocalArtifactStore, job_id: str) -> dict[Stage, set[int]]:
    """Attempts that have a log, by stage, in the order of the stages."""
    found: dict[Stage, set[int]] = {stage: set() for stage in Stage}
    for file in store.list(f"jobs/{job_id}/logs"):
        stage, _, number = file.removesuffix(".log").rpartition("-")
        if stage in found and number.isascii() and number.isdigit():
            found[Stage(stage)].add(int(number))
    return found


def _key(job_id: str, stage: Stage, attempt: int) -> str:
    return f"jobs/{job_id}/logs/{stage}-{attempt}.log"


def _tail(path: Path, lines: int) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - MAX_TAIL_BYTES, 0))
        content = file.read(MAX_TAIL_BYTES)
    last = content.decode("utf-8", "replace").splitlines()[-lines:]
    return "".join(f"{line}\n" for line in last)
