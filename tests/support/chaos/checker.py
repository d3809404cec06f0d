"""What must hold whatever broke; each breach is a sentence."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from shared.artifact_store import LocalArtifactStore, file_sha256
from shared.schemas.job import Stage
from shared.schemas.manifest import Manifest
from tests.support.chaos.driver import TERMINAL, Driver, Look


def violations(driver: Driver, ended: dict[str, dict[str, Any]]) -> list[str]:
    """All breaches of a run that is over.

    Args:
        ended: the accepted jobs as they were shown at the end.
    """
    site = driver.site
    return [
        *_ends(driver, ended),
        *_only_forward(driver),
        *_one_artifact(site.store, ended),
        *_overlaps(site.journal.read()),
        *_steps(site.journal.read()),
        *_hashes(site.store),
        *_leftovers(driver),
    ]


def _ends(driver: Driver, ended: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Every accepted job ends in one terminal state, and stays there."""
    for job_id in driver.accepted:
        if job_id not in ended:
            yield f"{job_id} was accepted and has not ended"
    seen: dict[str, str] = {}
    for look in driver.history:
        if look.job in seen and look.status != seen[look.job]:
            yield f"{look.job} went from {seen[look.job]} to {look.status}"
        if look.status in TERMINAL:
            seen[look.job] = look.status
    for job_id, job in ended.items():
        if job["status"] not in TERMINAL:
            yield f"{job_id} ended as {job['status']}"
        if job["status"] == "failed" and not (job["error"] and job["status_reason"]):
            yield f"{job_id} failed without a reason"


def _only_forward(driver: Driver) -> Iterator[str]:
    """What a user sees of a job only grows: percent, finished stages, attempts, and steps within training."""
    last: dict[str, Look] = {}
    for look in driver.history:
        before = last.get(look.job)
        if look.seconds < 0:
            yield f"{look.job} has a negative duration"
        if before is not None and not any(before.asked_at <= to and at <= look.at for at, to in driver.restarts):
            if look.percent < before.percent:
                yield f"{look.job} fell from {before.percent} to {look.percent} percent"
            if not before.finished_stages <= look.finished_stages:
                yield f"{look.job} lost finished stages {sorted(before.finished_stages - look.finished_stages)}"
            if look.attempt < before.attempt:
                yield f"{look.job} fell from attempt {before.attempt} to {look.attempt}"
            if look.step is not None and before.step is not None and look.step < before.step:
                yield f"{look.job} fell from step {before.step:g} to {look.step:g}"
        last[look.job] = look


def _one_artifact(store: LocalArtifactStore, ended: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A job that succeeded has one draft and one manifest a stage; no other job has a draft."""
    drafts = defaultdict(list)
    for job_id, job in ended.items():
        if (job["status"] == "succeeded") != (job["draft"] is not None):
            yield f"{job_id} is {job['status']} and has the draft {job['draft']}"
        if job["draft"] is not None:
            drafts[job["draft"]].append(job_id)
            if not store.exists(f"drafts/{job['draft']}.json"):
                yield f"{job_id} names the draft {job['draft']}, which is not there"
    for draft, jobs in drafts.items():
        if len(jobs) > 1:
            yield f"the draft {draft} belongs to {jobs}, which are not equal"
    registered = [name.removesuffix(".json") for name in store.list("drafts")]
    for draft in sorted(set(registered) - set(drafts)):
        yield f"the draft {draft} belongs to no job that succeeded"


def _overlaps(events: list[dict[str, Any]]) -> Iterator[str]:
    """No two live stage runs of a job, no GPU in two of them: the kernel's file locks say so."""
    for event in events:
        if event["kind"] == "overlap":
            yield f"{event['what']} was in use by another process when {event['token']} began {event['stage']}"


def _steps(events: list[dict[str, Any]]) -> Iterator[str]:
    """An attempt takes its steps in order, and begins at most one behind where the ones before it had come."""
    last: dict[str, int] = {}
    reached: dict[str, int] = defaultdict(int)
    for event in events:
        if event["kind"] != "step":
            continue
        token, job, step = event["token"], event["job"], event["step"]
        if token in last and step != last[token] + 1:
            yield f"{job}: {token} went from step {last[token]} to {step}"
        if token not in last and step < reached[job]:
            yield f"{job}: {token} began at step {step} although step {reached[job]} had been kept"
        last[token], reached[job] = step, max(reached[job], step)


def _hashes(store: LocalArtifactStore) -> Iterator[str]:
    """Every file that a manifest names is there, byte for byte."""
    for stage in Stage:
        for key in store.list(f"stages/{stage}"):
            name = f"stages/{stage}/{key}/manifest.json"
            if not store.exists(name):
                continue
            manifest = Manifest.model_validate_json(store.read(name))
            for entry in manifest.files:
                try:
                    path = store.path(f"{manifest.root}/{entry.path}")
                except KeyError:
                    yield f"{name} names {entry.path}, which is not there"
                    continue
                if file_sha256(path) != entry.sha256:
                    yield f"{name} names {entry.path} with another hash"


def _leftovers(driver: Driver) -> Iterator[str]:
    """When all jobs have ended, no process of theirs lives and nothing waits in the queue."""
    for process in driver.site.run_processes():
        yield f"process {process.pid} of an ended job lives"
