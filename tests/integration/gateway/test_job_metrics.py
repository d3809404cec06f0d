"""Curves and checkpoints of a training over HTTP: what a resumed run replaces is gone, and long curves are thinned."""

import itertools
import json

import httpx
import pytest

from shared.artifact_store import LocalArtifactStore
from shared.job_store import JobStore
from shared.schemas.job import JobRecord, JobStatus, Stage, StageStatus, now
from shared.schemas.manifest import FileEntry, Manifest

KEY = "a" * 32
ROOT = f"stages/train/{KEY}/attempts/run_x"


@pytest.fixture
def job(http: httpx.Client, dataset: str) -> str:
    return http.post("/v1/jobs", json={"data": {"dataset": dataset}}).json()["id"]


def train(jobs: JobStore, job_id: str, attempt: int, steps: range, validate_every: int = 10) -> None:
    """What a training reports that has done the steps before."""
    jobs.append_event(job_id, "training_started", {"stage": "train", "attempt": attempt, "step": steps.start - 1})
    for step in steps:
        place = {"stage": "train", "attempt": attempt, "step": step}
        jobs.append_event(job_id, "metric", {**place, "loss": 100.0 - step, "epoch": step // validate_every})
        if step % validate_every == 0:
            figures = {"val_loss": 50.0 - step, "val_estimated_acceptance_length": 1 + step / 100}
            jobs.append_event(job_id, "metric", {**place, **figures, "epoch": step // validate_every - 1})
            jobs.append_event(job_id, "checkpoint", {**place, "epoch": step // validate_every})


def curve(http: httpx.Client, job_id: str, **params) -> list[dict]:
    response = http.get(f"/v1/jobs/{job_id}/metrics", params=params)
    assert response.status_code == 200, response.text
    return response.json()["data"]


def test_a_resumed_training_replaces_what_it_repeats(http: httpx.Client, jobs: JobStore, job: str) -> None:
    train(jobs, job, 1, range(1, 38))
    train(jobs, job, 2, range(31, 41))
    points = curve(http, job, name="loss")
    assert [point["step"] for point in points] == list(range(1, 41))
    assert [point["attempt"] for point in points] == [1] * 30 + [2] * 10
    assert points[4]["values"] == {"loss": 95.0}
    assert [point["step"] for point in curve(http, job, name="val_loss")] == [10, 20, 30, 40]
    everything = curve(http, job)
    assert [point["step"] for point in everything] == sorted(point["step"] for point in everything)
    replaced = next(event for event in events(http, job) if event["data"].get("step") == 35)
    assert [point["step"] for point in curve(http, job, name="loss", after=replaced["id"])] == list(range(31, 41))


def events(http: httpx.Client, job_id: str) -> list[dict]:
    return http.get(f"/v1/jobs/{job_id}/events", params={"limit": 1000}).json()["data"]


def test_curves_are_paged_and_thinned(http: httpx.Client, jobs: JobStore, job: str) -> None:
    train(jobs, job, 1, range(1, 301), validate_every=100)
    thinned = curve(http, job, max_points=50)
    assert len(thinned) == 50
    assert (thinned[0]["step"], thinned[-1]["step"]) == (1, 300)
    assert [point["step"] for point in thinned if "val_loss" in point["values"]] == [100, 200, 300]
    steps = [point["step"] for point in thinned if "loss" in point["values"]]
    assert max(later - step for step, later in itertools.pairwise(steps)) <= 8
    pages: list[dict] = []
    for _ in range(3):
        params = {"max_points": 50, "limit": 20} | ({"after": pages[-1]["id"]} if pages else {})
        pages += http.get(f"/v1/jobs/{job}/metrics", params=params).json()["data"]
    assert pages == thinned
    first = http.get(f"/v1/jobs/{job}/metrics", params={"limit": 200}).json()
    rest = curve(http, job, after=first["data"][-1]["id"])
    assert first["has_more"] is True
    assert len(first["data"]) + len(rest) == 303
    assert http.get(f"/v1/jobs/{job}/metrics", params={"after": "nonsense"}).status_code == 422
    assert curve(http, job, stage="evaluate") == []


def test_checkpoints_say_what_is_kept(http: httpx.Client, jobs: JobStore, job: str, store: LocalArtifactStore) -> None:
    assert http.get(f"/v1/jobs/{job}/checkpoints").json()["data"] == []
    train(jobs, job, 1, range(1, 21))
    jobs.update(job, start)
    store.folder(f"{ROOT}/work/run/resume/step_20")
    found = http.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
    assert [(c["step"], c["epoch"], c["kind"], c["available"]) for c in found] == [
        (10, 0, ["resume"], False),
        (20, 1, ["resume", "best", "last"], True),
    ]
    assert found[1]["metrics"] == {"loss": 30.0, "estimated_acceptance_length": 1.2}
    page = http.get(f"/v1/jobs/{job}/checkpoints", params={"limit": 1}).json()
    assert page["has_more"] is True
    assert http.get(f"/v1/jobs/{job}/checkpoints", params={"after": page["data"][0]["id"]}).json()["data"] == found[1:]


def start(record: JobRecord) -> None:
    record.status = JobStatus.RUNNING
    record.stage(Stage.TRAIN).status, record.stage(Stage.TRAIN).key = StageStatus.RUNNING, KEY


def test_a_reused_training_shows_what_the_other_job_measured(
    http: httpx.Client, jobs: JobStore, job: str, store: LocalArtifactStore
) -> None:
    lines = [{"split": "train", "step": step, "epoch": 0, "values": {"loss": 9.0 - step}} for step in (1, 2)]
    lines.append({"split": "val", "step": 2, "epoch": 0, "values": {"loss": 5.0, "odd": None}})
    epochs = {"best": {"epoch": 0, "step": 2, "metrics": {"loss": 5.0}}, "last": {"epoch": 0, "step": 2, "metrics": {}}}
    contents = {
        "metrics.jsonl": "".join(f"{json.dumps(line)}\n" for line in lines),
        "train_config.json": json.dumps(epochs),
        "draft/config.json": "{}",
    }
    manifest = write_stage(store, contents)

    def change(record: JobRecord) -> None:
        start(record)
        entry = record.stage(Stage.TRAIN)
        entry.status, entry.manifest = StageStatus.REUSED, manifest

    jobs.update(job, change)
    points = curve(http, job)
    assert [(point["step"], point["values"]) for point in points] == [
        (1, {"loss": 8.0, "epoch": 0}),
        (2, {"loss": 7.0, "epoch": 0}),
        (2, {"val_loss": 5.0, "epoch": 0}),
    ]
    assert curve(http, job, after=points[0]["id"]) == points[1:]
    found = http.get(f"/v1/jobs/{job}/checkpoints").json()["data"]
    assert [(c["step"], c["kind"], c["available"]) for c in found] == [(2, ["best", "last"], True)]


def write_stage(store: LocalArtifactStore, contents: dict[str, str]) -> str:
    for name, text in contents.items():
        store.write(f"{ROOT}/out/{name}", text.encode())
    manifest = Manifest(
        stage=Stage.TRAIN,
        key=KEY,
        token="run_x",
        job_id="job_other",
        root=f"{ROOT}/out",
        inputs={},
        parameters={},
        files=[FileEntry(path=name, size=len(text), sha256="0" * 64) for name, text in contents.items()],
        seconds=1,
        created_at=now(),
    )
    key = f"stages/train/{KEY}/manifest.json"
    store.create(key, manifest.model_dump_json().encode())
    return key
