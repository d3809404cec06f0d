"""Jobs over HTTP: created once, listed in pages, cancelled; bad documents are refused with pointers."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from shared.artifact_store import LocalArtifactStore
from shared.job_store import JobStore
from shared.queue import JobQueue
from shared.schemas.job import JobRecord, JobStatus, Stage, StageStatus
from tests.support.gateway_process import GatewayProcess


def create(http: httpx.Client, dataset: str, key: str | None = None, **fields) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return http.post("/v1/jobs", json={"data": {"dataset": dataset}, **fields}, headers=headers)


def run_it(jobs: JobStore, job_id: str, status: JobStatus = JobStatus.RUNNING) -> None:
    def change(record: JobRecord) -> None:
        record.status, record.token = JobStatus.RUNNING, "token"
        record.stage(Stage.PREPARE).status = StageStatus.RUNNING

    jobs.acquire_run(job_id, "token", 600)
    jobs.update(job_id, change)
    if status != JobStatus.RUNNING:
        jobs.update(job_id, lambda record: setattr(record, "status", status))


def test_a_job_is_stored_enqueued_and_shown(
    http: httpx.Client, dataset: str, store: LocalArtifactStore, queue: JobQueue
) -> None:
    response = create(http, dataset, name="first", metadata={"team": "serving"})
    job = response.json()
    assert response.status_code == 201, response.text
    assert response.headers["location"] == f"/v1/jobs/{job['id']}"
    assert (job["object"], job["status"], job["name"]) == ("job", "queued", "first")
    assert job["spec"]["verifier"]["endpoint"] == "http://127.0.0.1:9"
    assert job["spec"]["draft"]["head_dim"] == 128
    assert [stage["name"] for stage in job["stages"]] == [stage.value for stage in Stage]
    assert queue.is_waiting(job["id"], 1)
    assert json.loads(store.read(f"jobs/{job['id']}/job.json"))["id"] == job["id"]
    shown = http.get(f"/v1/jobs/{job['id']}").json()
    assert shown["queue"]["position"] == job["queue"]["position"] >= 1
    assert shown["created_at"].endswith("Z")


BAD_DOCUMENTS = {
    "unknown field": ({"nonsense": 1}, "/nonsense"),
    "unknown inner field": ({"train": {"speed": 1}}, "/train/speed"),
    "17 metadata pairs": ({"metadata": {str(i): "x" for i in range(17)}}, "/metadata"),
    "long name": ({"name": "a" * 10_000}, "/name"),
    "name that is a path": ({"name": "../x"}, "/name"),
    "lone surrogate": ({"name": "\ud800"}, "/name"),
    "lr below 0": ({"train": {"lr": -1e-6}}, "/train/lr"),
    "no such preset": ({"preset": "huge"}, "/preset"),
    "no such dataset": ({"data": {"dataset": "ds_" + "0" * 20}}, "/data/dataset"),
    "dataset that is a path": ({"data": {"dataset": "ds_../../x"}}, "/data/dataset"),
    "no such suite": (
        {"evaluate": {"suites": [{"name": "a"}, {"name": "b", "dataset": "ds_x"}]}},
        "/evaluate/suites/1/dataset",
    ),
    "no such draft": ({"evaluate": {"compare_to": "draft_x"}}, "/evaluate/compare_to"),
    "no such verifier": ({"verifier": {"model": "/no/such/folder"}}, "/verifier/model"),
    "verifier that climbs": ({"verifier": {"model": "a/../../b"}}, "/verifier/model"),
    "endpoint and managed": ({"verifier": {"endpoint": "http://x", "managed": {}}}, "/verifier"),
    "unpinned code": ({"verifier": {"managed": {"trust_remote_code": True}}}, "/verifier/revision"),
    "equal layers": ({"capture": {"layer_ids": [2, 2]}}, "/capture/layer_ids"),
    "no layers": ({"capture": {"layer_ids": []}}, "/capture/layer_ids"),
    "verifier that is text": ({"verifier": "kimi"}, "/verifier"),
}


@pytest.mark.parametrize("kind", BAD_DOCUMENTS)
def test_a_bad_document_is_refused_with_a_pointer(
    kind: str, http: httpx.Client, dataset: str, store: LocalArtifactStore
) -> None:
    fields, pointer = BAD_DOCUMENTS[kind]
    before = list(store.list("jobs"))
    document = {"data": {"dataset": dataset}} | fields
    response = http.post("/v1/jobs", content=json.dumps(document))
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert pointer in [error["pointer"] for error in response.json()["errors"]]
    assert list(store.list("jobs")) == before


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b"\xff", 400),
        (b"", 400),
        (b'{"a": NaN}', 400),
        (b"[" * 100_000, 400),
        (b"[]", 422),
        (b'{"data": "' + b"x" * (50 << 20) + b'"}', 413),
    ],
    ids=["cut", "not UTF-8", "empty", "NaN", "deep", "array", "50 MB"],
)
def test_a_body_that_is_no_document_is_refused(content: bytes, status: int, http: httpx.Client) -> None:
    response = http.post("/v1/jobs", content=content)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")


def test_one_key_and_one_document_sent_50_times_at_once_is_one_job(http: httpx.Client, dataset: str) -> None:
    before = {job["id"] for job in http.get("/v1/jobs", params={"limit": 200}).json()["data"]}
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: create(http, dataset, "at-once"), range(50)))
    after = {job["id"] for job in http.get("/v1/jobs", params={"limit": 200}).json()["data"]}
    statuses = [answer.status_code for answer in answers]
    assert statuses.count(201) == 1
    assert set(statuses) <= {200, 201, 409}
    assert {answer.json()["id"] for answer in answers if answer.status_code < 300} == after - before
    assert len(after - before) == 1


def test_a_key_stands_for_its_first_document(http: httpx.Client, dataset: str) -> None:
    first = create(http, dataset, "key")
    again = create(http, dataset, "key")
    other = create(http, dataset, "key", name="other")
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 422)
    assert again.json()["id"] == first.json()["id"]
    assert other.json()["errors"][0]["pointer"] == "/Idempotency-Key"


def test_a_refused_document_does_not_use_up_its_key(http: httpx.Client, dataset: str) -> None:
    assert create(http, "ds_" + "0" * 20, "refused").status_code == 422
    assert create(http, dataset, "refused").status_code == 201


def test_the_list_pages_and_filters(http: httpx.Client, dataset: str, jobs: JobStore) -> None:
    made = [create(http, dataset).json()["id"] for _ in range(5)][::-1]
    run_it(jobs, made[1])
    first = http.get("/v1/jobs", params={"limit": 2}).json()
    second = http.get("/v1/jobs", params={"limit": 2, "after": first["data"][-1]["id"]}).json()
    assert [job["id"] for job in first["data"] + second["data"]] == made[:4]
    assert first["has_more"]
    running = http.get("/v1/jobs", params={"status": "running"}).json()
    assert [job["id"] for job in running["data"]] == [made[1]]
    queued = http.get("/v1/jobs", params={"status": "queued", "limit": 2}).json()
    assert [job["id"] for job in queued["data"]] == [made[0], made[2]]
    assert http.get("/v1/jobs", params={"preset": "tiny"}).json()["data"] == []
    for bad in ({"status": "asleep"}, {"limit": 0}, {"after": "job_x"}):
        assert http.get("/v1/jobs", params=bad).status_code == 422


def test_cancelling_what_waits_is_at_once_and_may_be_repeated(
    http: httpx.Client, dataset: str, queue: JobQueue, store: LocalArtifactStore
) -> None:
    ids = [create(http, dataset).json()["id"] for _ in range(50)]
    for job_id in ids:
        first, second = (http.post(f"/v1/jobs/{job_id}/cancel") for _ in range(2))
        assert (first.status_code, second.status_code) == (200, 200)
        assert first.json()["status"] == second.json()["status"] == "cancelled"
        assert first.json()["status_reason"]["code"] == "stopped_by_user"
        assert not queue.is_waiting(job_id, 1)
        assert json.loads(store.read(f"jobs/{job_id}/terminal.json"))["status"] == "cancelled"


def test_cancelling_what_runs_is_left_to_the_worker(http: httpx.Client, dataset: str, jobs: JobStore) -> None:
    job_id = create(http, dataset).json()["id"]
    run_it(jobs, job_id)
    for _ in range(2):
        assert http.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelling"


@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.FAILED])
def test_cancelling_what_has_ended_is_409(status: JobStatus, http: httpx.Client, dataset: str, jobs: JobStore) -> None:
    job_id = create(http, dataset).json()["id"]
    run_it(jobs, job_id, status)
    assert http.post(f"/v1/jobs/{job_id}/cancel").status_code == 409
    assert http.get(f"/v1/jobs/{job_id}").json()["status"] == status


def test_events_page_from_the_first_to_the_last(http: httpx.Client, dataset: str, jobs: JobStore) -> None:
    job_id = create(http, dataset).json()["id"]
    run_it(jobs, job_id)
    first = http.get(f"/v1/jobs/{job_id}/events", params={"limit": 1}).json()
    rest = http.get(f"/v1/jobs/{job_id}/events", params={"after": first["data"][0]["id"]}).json()
    assert first["has_more"]
    assert not rest["has_more"]
    assert [event["data"]["status"] for event in first["data"] + rest["data"]] == ["queued", "running"]


def test_logs_are_text_by_stage(http: httpx.Client, dataset: str, store: LocalArtifactStore) -> None:
    job_id = create(http, dataset).json()["id"]
    assert http.get(f"/v1/jobs/{job_id}/logs").text == ""
    store.write(f"jobs/{job_id}/logs/prepare-1.log", b"old\n")
    store.write(f"jobs/{job_id}/logs/prepare-2.log", b"one\ntwo\n")
    store.write(f"jobs/{job_id}/logs/train-1.log", b"step\n")
    everything = http.get(f"/v1/jobs/{job_id}/logs")
    assert everything.text == "==> prepare-2 <==\none\ntwo\n==> train-1 <==\nstep\n"
    assert everything.headers["content-type"].startswith("text/plain")
    assert http.get(f"/v1/jobs/{job_id}/logs", params={"stage": "prepare", "tail": 1}).text == "two\n"
    assert http.get(f"/v1/jobs/{job_id}/logs", params={"stage": "prepare", "attempt": 1}).text == "old\n"
    assert http.get(f"/v1/jobs/{job_id}/logs", params={"stage": "vocab"}).status_code == 404


BAD_IDS = ["x", "..%2f..%2fx", "%2e%2e%2fx", "%252e%252e%252fx", "job_%00", "job_;ls", "job_%5c..", "job_" + "0" * 20]
BAD_IDS += ["x" * 10_000, "job_" + "0" * 300]


@pytest.mark.parametrize("job_id", BAD_IDS)
def test_an_id_that_is_none_is_404_everywhere(job_id: str, http: httpx.Client) -> None:
    for tail in ("", "/events", "/logs", "/artifacts", "/artifacts/train/config.json"):
        response = http.get(f"/v1/jobs/{job_id}{tail}")
        assert (response.status_code, response.headers["content-type"]) == (404, "application/problem+json")
        assert len(response.json()["detail"]) < 200
    assert http.post(f"/v1/jobs/{job_id}/cancel").status_code == 404
    for resource in ("datasets", "drafts", "workers", "gpus", "verifiers", "webhooks"):
        assert http.get(f"/v1/{resource}/{job_id}").status_code == 404
    assert http.delete(f"/v1/api-keys/{job_id}").status_code == 404


def test_every_error_is_a_problem(http: httpx.Client, gateway: GatewayProcess) -> None:
    unknown, method = http.get("/v1/nothing"), http.put("/v1/jobs")
    assert (unknown.status_code, method.status_code) == (404, 405)
    assert method.headers["allow"] == "GET, HEAD, POST"
    for response in (unknown, method):
        assert response.headers["content-type"] == "application/problem+json"
        assert {"type", "title", "status", "detail", "errors"} <= response.json().keys()


def test_openapi_has_an_example_for_every_body(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    bodies = [
        content
        for path in document["paths"].values()
        for operation in path.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
    ]
    assert len(bodies) >= 6
    assert all("example" in content or "examples" in content for content in bodies)
    references = {part.split('"')[0] for part in json.dumps(document).split('"$ref": "#/components/schemas/')[1:]}
    assert references <= document["components"]["schemas"].keys()


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/login", "/v1/jobs", "/v1/events", "/v1/jobs/job_x", "/page/nothing"]
)
def test_head_is_get_without_a_body(path: str, http: httpx.Client) -> None:
    head, whole = http.head(path), http.get(path)
    assert head.status_code == whole.status_code
    for name in ("content-type", "content-security-policy"):
        assert head.headers.get(name) == whole.headers.get(name)
    assert ("content-length" in head.headers) == ("content-length" in whole.headers)  # jobs that run change theirs
    assert (head.content, bool(whole.content)) == (b"", True)


def test_head_begins_no_stream(http: httpx.Client, dataset: str) -> None:
    job = create(http, dataset).json()["id"]
    for path in ("/v1/events", f"/v1/jobs/{job}/events", f"/v1/jobs/{job}/logs"):
        head = http.head(path, headers={"Accept": "text/event-stream"}, timeout=10)
        assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
