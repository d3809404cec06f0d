"""A document in the store that is garbage costs itself only, and so does a file there that is not the store's."""

import errno
import os
from pathlib import Path

import httpx
import pytest

from services.gateway.webhooks.deliverer import Deliverer
from services.gateway.webhooks.deliveries import QUEUE, Deliveries, Delivery
from services.gateway.webhooks.hosts import AllowedHosts
from services.gateway.webhooks.registry import WebhookEvent, Webhooks
from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError
from shared.ids import new_id
from shared.job_store import JobStore
from shared.presets import resolve
from shared.schemas.job import JobStatus, Stage, now
from shared.settings import Settings
from tests.support.stage_store import StageStore

GARBAGE = b'\xff\xfe{"id": "cut o'
STRAY = ".nfs00000000012345670000002a"  # what NFS leaves of a file that was removed while it was open
FOLDERS = [
    "api-keys",
    "datasets",
    "draft-tags",
    "drafts",
    "idempotency",
    "jobs",
    "stages",
    "stages/capture",
    "webhooks",
]
LISTS = ["/v1/jobs", "/v1/datasets", "/v1/drafts", "/v1/webhooks"]


def clear_away(http: httpx.Client) -> dict:
    response = http.post("/v1/gc")
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_file_that_is_not_the_stores_is_left_out(http: httpx.Client, store: LocalArtifactStore, folder: str) -> None:
    stray = store.folder(folder) / STRAY
    stray.touch()
    assert [http.get(path).status_code for path in LISTS] == [200] * len(LISTS)
    assert not any(STRAY in item["key"] for item in clear_away(http)["items"])
    stray.unlink()


def test_a_dataset_that_cannot_be_read_is_missing_from_the_list(http, store, dataset: str) -> None:
    other = http.post("/v1/datasets", content=b'{"prompt": "another"}\n').json()["id"]
    store.write(f"datasets/{other}/dataset.json", GARBAGE)
    assert dataset in [item["id"] for item in http.get("/v1/datasets").json()["data"]]
    assert http.get(f"/v1/datasets/{other}").status_code == 404
    assert http.delete(f"/v1/datasets/{dataset}").status_code == 200
    store.delete(f"datasets/{other}")


@pytest.mark.parametrize("stage", [Stage.CAPTURE, Stage.PUBLISH])
def test_a_manifest_that_cannot_be_read_is_as_one_that_is_gone(http, store, jobs: JobStore, stage: Stage) -> None:
    record = StageStore(jobs.redis, store.root).job("aaaaaaa")
    key, draft = record.stage(stage).manifest, f"draft_{record.stage(Stage.PUBLISH).key[:20]}"
    whole = store.read(key)
    store.write(key, GARBAGE)
    assert http.get(f"/v1/jobs/{record.id}/artifacts").status_code == 200
    lineage = http.get(f"/v1/drafts/{draft}/lineage")
    assert (lineage.status_code, lineage.json()["verified"]) == (200, False)
    store.write(f"{key.rpartition('/')[0]}/manifest.damaged-run_x.json", GARBAGE)
    assert clear_away(http)["items"] == []
    store.write(key, whole)


@pytest.mark.parametrize("name", [b"", GARBAGE, b"../job x"])
def test_a_retry_whose_name_cannot_be_read_stops_no_rebuild_and_is_named_anew(http, store, jobs, dataset, name) -> None:
    job_id = jobs.create(resolve({"data": {"dataset": dataset}})).id
    jobs.update(job_id, lambda record: setattr(record, "status", JobStatus.CANCELLED))
    store.write(f"jobs/{job_id}/retried_as", name)
    jobs.redis.flushall()
    listed = http.get("/v1/jobs")
    assert (listed.status_code, job_id in listed.text) == (200, True)
    answers = [http.post(f"/v1/jobs/{job_id}/retry") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert answers[0].json()["id"] == answers[1].json()["id"]


def test_a_job_that_cannot_be_read_is_named_where_it_keeps_stages_from_being_cleared(http, store, jobs) -> None:
    job_id = new_id("job")
    store.write(f"jobs/{job_id}/job.json", GARBAGE)
    assert any(job_id in reason for reason in clear_away(http)["kept"])
    store.delete(f"jobs/{job_id}")


def test_a_store_that_may_not_be_looked_into_is_a_failure_of_the_store(store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("listdir", "stat"):  # root may look everywhere
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(ArtifactStoreError):
        list(store.list("jobs"))
    for look in (store.exists, store.path):
        with pytest.raises(ArtifactStoreError, match="Permission denied"):
            look("jobs/x")


def test_events_that_cannot_be_read_cost_themselves_only(store: LocalArtifactStore, jobs: JobStore) -> None:
    job_id = jobs.create(resolve({"data": {"dataset": "ds_x"}})).id
    (segment,) = store.path(f"jobs/{job_id}/events").iterdir()
    segment.write_bytes(segment.read_bytes() + GARBAGE)
    assert jobs.append_event(job_id, "warning", {"message": "after"})
    jobs.redis.delete(f"eyrie:events:{job_id}")
    assert [fields["type"] for _, fields in jobs.events(job_id)] == ["job", "warning"]


def test_a_webhook_or_delivery_that_cannot_be_read_keeps_no_other_one_waiting(jobs: JobStore, tmp_path: Path) -> None:
    store = LocalArtifactStore(tmp_path)
    webhooks, deliveries = Webhooks(store), Deliveries(store)
    broken, whole = (webhooks.create("http://hook", list(WebhookEvent), None) for _ in range(2))
    store.write(f"webhooks/{broken.id}/webhook.json", GARBAGE)
    assert webhooks.all() == [whole]
    sent, lost = (
        Delivery(id=new_id("msg"), webhook=whole.id, event=WebhookEvent.TEST, job_id=None, body="{}", created_at=now())
        for _ in range(2)
    )
    deliveries.enter(sent)
    deliveries.enter(lost)
    store.write(f"webhooks/{whole.id}/deliveries/{lost.id}.json", GARBAGE)
    store.write(f"{QUEUE}/{new_id('msg')}", GARBAGE)
    Deliverer(JobStore(jobs.redis, store), Settings(), AllowedHosts.parse("hook"))._look_at_queue()
    assert list(deliveries.pending()) == [sent.id]
