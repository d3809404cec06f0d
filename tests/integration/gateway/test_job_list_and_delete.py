"""Jobs over HTTP: lists by metadata, name and time; deletion; and the answer that an idempotency key stands for."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import httpx
import pytest

from shared.artifact_store import LocalArtifactStore
from shared.ids import new_id
from shared.job_store import JobStore
from shared.schemas.job import JobRecord, JobStatus, Progress, Stage, StageStatus, now
from shared.schemas.registry import DraftRecord
from tests.integration.gateway.test_jobs import create, run_it


def ids(http: httpx.Client, **query) -> list[str]:
    response = http.get("/v1/jobs", params=query)
    assert response.status_code == 200, response.text
    return [job["id"] for job in response.json()["data"]]


def test_a_list_is_filtered_by_metadata_name_and_time(http: httpx.Client, dataset: str) -> None:
    pairs = [{"team": "a", "run/1": "x=y&z"}, {"team": "a"}, {"team": "b"}]
    made = [create(http, dataset, name=f"filter {i}", metadata=pair).json() for i, pair in enumerate(pairs)]
    first, second, third = (job["id"] for job in made)
    assert ids(http, **{"metadata[team]": "a"}) == [second, first]
    assert ids(http, **{"metadata[team]": "a", "metadata[run/1]": "x=y&z"}) == [first]
    assert ids(http, **{"metadata[team]": "c"}) == []
    assert ids(http, name="filter 2") == [third]
    assert ids(http, name="filter 2", **{"metadata[team]": "a"}) == []
    moments = [datetime.fromisoformat(job["created_at"]) for job in made]
    day = timedelta(days=1)
    assert third in ids(http, created_after=(moments[0] - day).isoformat())
    assert ids(http, created_after=(moments[2] + day).isoformat()) == []
    assert third not in ids(http, created_before=moments[2].isoformat())
    assert ids(http, created_after=moments[0].isoformat(), created_before=moments[2].isoformat()) in ([second], [])
    between = {"created_after": (moments[0] - timedelta(milliseconds=1)).isoformat(), "status": "queued"}
    assert ids(http, **between, **{"metadata[team]": "a"}, limit=1, after=second) == [first]
    assert ids(http, **between, limit=2) == [third, second]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"metadata": "a"}, "/metadata"),
        ({"metadata[]": "a"}, "/metadata[]"),
        ({"metadata[a": "a"}, "/metadata[a"),
        ({f"metadata[{'k' * 65}]": "a"}, f"/metadata[{'k' * 65}]"),
        ([("metadata[a]", "1"), ("metadata[a]", "2")], "/metadata[a]"),
        ({f"metadata[{i}]": "a" for i in range(17)}, "/metadata"),
        ({"created_after": "yesterday"}, "/created_after"),
        ({"created_before": "2026-01-01T00:00:00"}, "/created_before"),
    ],
)
def test_a_filter_that_cannot_be_is_refused_with_a_pointer(query, pointer: str, http: httpx.Client) -> None:
    response = http.get("/v1/jobs", params=query)
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    assert [(error["source"], error["pointer"]) for error in response.json()["errors"]] == [("query", pointer)]


def test_progress_shows_the_stage_that_runs(http: httpx.Client, dataset: str, jobs: JobStore) -> None:
    job_id = create(http, dataset).json()["id"]
    run_it(jobs, job_id)
    metrics = {"loss": 1.0, "tokens_per_s": 900.0}
    progress = Progress(done=5, total=20, unit="rows", rate=2.5, eta_s=6, metrics=metrics, updated_at=now())
    jobs.set_progress(job_id, "token", progress)
    shown = http.get(f"/v1/jobs/{job_id}").json()["progress"]
    assert shown.pop("updated_at").endswith("Z")
    assert shown == {
        "percent": 0.5,
        "stage": "prepare",
        "step": 5,
        "total": 20,
        "unit": "rows",
        "samples_per_s": 2.5,
        "tokens_per_s": 900,
        "eta_s": 6,
    }


def end(jobs: JobStore, job_id: str, draft: str | None = None) -> None:
    def succeed(record: JobRecord) -> None:
        record.status, record.draft = JobStatus.SUCCEEDED, draft
        record.stage(Stage.PUBLISH).status = StageStatus.SUCCEEDED

    run_it(jobs, job_id)
    jobs.release_run(job_id, "token")
    jobs.update(job_id, succeed)


def test_only_a_job_that_has_ended_can_be_deleted(http: httpx.Client, dataset: str, jobs: JobStore) -> None:
    job_id = create(http, dataset).json()["id"]
    waiting = http.delete(f"/v1/jobs/{job_id}")
    run_it(jobs, job_id)
    running = http.delete(f"/v1/jobs/{job_id}")
    jobs.update(job_id, lambda record: setattr(record, "status", JobStatus.FAILED))
    tidying = http.delete(f"/v1/jobs/{job_id}")
    assert (waiting.status_code, running.status_code, tidying.status_code) == (409, 409, 409)
    assert "cancel it first" in waiting.json()["detail"]
    assert "tidying up" in tidying.json()["detail"]
    jobs.release_run(job_id, "token")
    assert http.delete(f"/v1/jobs/{job_id}").json() == {"id": job_id, "object": "job", "deleted": True}


def test_a_deleted_job_is_gone_for_good(
    http: httpx.Client, dataset: str, jobs: JobStore, store: LocalArtifactStore
) -> None:
    job_id = create(http, dataset, metadata={"gone": "yes"}).json()["id"]
    store.write(f"jobs/{job_id}/logs/prepare-1.log", b"line\n")
    http.post(f"/v1/jobs/{job_id}/cancel")
    record = jobs.get(job_id)
    assert http.delete(f"/v1/jobs/{job_id}").status_code == 200
    jobs.archive.keep(record)  # by somebody who had read it before
    for tail in ("", "/events", "/logs", "/artifacts"):
        assert http.get(f"/v1/jobs/{job_id}{tail}").status_code == 404
    assert http.delete(f"/v1/jobs/{job_id}").status_code == 404
    assert ids(http, **{"metadata[gone]": "yes"}) == []
    assert list(jobs.redis.scan_iter(f"eyrie:*:{job_id}")) == [f"eyrie:deleted:{job_id}"]
    jobs.redis.flushdb()
    assert http.get(f"/v1/jobs/{job_id}").status_code == 404
    assert job_id not in ids(http, limit=200)


def test_the_job_behind_a_draft_stays_while_the_draft_does(
    http: httpx.Client, dataset: str, jobs: JobStore, store: LocalArtifactStore
) -> None:
    maker, reuser = (create(http, dataset).json()["id"] for _ in range(2))
    draft = DraftRecord(
        id=new_id("draft"),
        job_id=maker,
        verifier="v",
        algorithm="eagle3",
        root="stages/x/out",
        manifest="stages/x/manifest.json",
        bytes=1,
        created_at=now(),
    )
    store.write(f"drafts/{draft.id}.json", draft.model_dump_json().encode())
    for job_id in (maker, reuser):
        end(jobs, job_id, draft.id)
    refused = http.delete(f"/v1/jobs/{maker}")
    assert refused.status_code == 409
    assert f"{draft.id}, whose lineage leads to it; delete the draft first" in refused.json()["detail"]
    assert http.delete(f"/v1/jobs/{reuser}").status_code == 200
    store.delete(f"drafts/{draft.id}.json")
    assert http.delete(f"/v1/jobs/{maker}").status_code == 200


def test_a_job_whose_retry_was_deleted_can_be_tried_again(http: httpx.Client, dataset: str) -> None:
    first = create(http, dataset).json()["id"]
    http.post(f"/v1/jobs/{first}/cancel")
    second = http.post(f"/v1/jobs/{first}/retry").json()["id"]
    http.post(f"/v1/jobs/{second}/cancel")
    assert http.delete(f"/v1/jobs/{second}").status_code == 200
    assert http.get(f"/v1/jobs/{first}").json()["retried_as"] is None
    third = http.post(f"/v1/jobs/{first}/retry")
    assert third.status_code == 201
    assert third.json()["id"] not in (first, second)


def test_a_key_gives_its_first_answer_again_whatever_became_of_the_job(
    http: httpx.Client, dataset: str, jobs: JobStore
) -> None:
    first = create(http, dataset, "answer")
    job_id = first.json()["id"]
    http.post(f"/v1/jobs/{job_id}/cancel")
    for forget in (lambda: None, jobs.redis.flushdb, lambda: http.delete(f"/v1/jobs/{job_id}"), jobs.redis.flushdb):
        forget()
        again = create(http, dataset, "answer")
        assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
        assert again.headers["location"] == f"/v1/jobs/{job_id}"
        assert again.text == first.text
        assert create(http, dataset, "answer", name="other").status_code == 422
    assert http.get(f"/v1/jobs/{job_id}").status_code == 404


def test_twenty_equal_requests_at_once_get_one_job(http: httpx.Client, dataset: str) -> None:
    """Case 33. Who comes while the first is under way is told to wait, and not to try by itself."""
    mark = {"once": new_id("mark")}
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: create(http, dataset, "twenty", metadata=mark), range(20)))
    waiting = [answer for answer in answers if answer.status_code == 409]
    done = [answer for answer in answers if answer.status_code != 409]
    assert sorted(answer.status_code for answer in done)[-1] == 201
    assert len({answer.text for answer in done}) == 1
    for answer in waiting:
        assert (answer.headers["x-should-retry"], answer.headers["retry-after"]) == ("false", "1")
    assert len(ids(http, **{"metadata[once]": mark["once"]})) == 1
