"""Event streams: a client that is cut off and comes back misses nothing and gets nothing twice, whatever happened."""

import contextlib
import shutil
import threading
from pathlib import Path

import httpx
import pytest

from shared.event_log import CHANGES, stream
from shared.fleet import Fleet
from shared.job_store import JobStore
from shared.schemas.fleet import WorkerRecord
from shared.schemas.job import JobRecord, JobStatus, now
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.redis_server import redis_server
from tests.support.sse_client import EventSource, Message
from tests.support.wait import wait_until
from tools.embedded_redis import RedisHandle

pytestmark = pytest.mark.api
PRODUCED = 300


@pytest.fixture
def job(http: httpx.Client, dataset: str) -> str:
    return http.post("/v1/jobs", json={"data": {"dataset": dataset}}).json()["id"]


def produce(jobs: JobStore, job_id: str, count: int = PRODUCED, first: int = 0) -> None:
    for number in range(first, first + count):
        jobs.append_event(job_id, "metric", {"step": number, "loss": 1.0})


def cancel(jobs: JobStore, job_id: str) -> None:
    def change(record: JobRecord) -> None:
        record.status = JobStatus.CANCELLED

    jobs.update(job_id, change)


def all_events(http: httpx.Client, job_id: str) -> list[dict]:
    """Every event, page by page."""
    found, params = [], {"limit": 70}
    while True:
        page = http.get(f"/v1/jobs/{job_id}/events", params=params).json()
        found += page["data"]
        if not page["has_more"]:
            return found
        params["after"] = found[-1]["id"]


def test_a_client_that_is_cut_off_misses_nothing_and_gets_nothing_twice(
    http: httpx.Client, gateway: GatewayProcess, redis_handle: RedisHandle, jobs: JobStore, job: str, tmp_path: Path
) -> None:
    source, got, cuts = EventSource(f"/v1/jobs/{job}/events"), [], 0

    def work() -> None:
        produce(jobs, job)
        cancel(jobs, job)

    producer = threading.Thread(target=work)
    with gateway_process(tmp_path, redis_handle.url, store_root=str(gateway.store)) as other:
        producer.start()
        while not got or got[-1].event != "end":
            base = (gateway, other)[cuts % 2].url
            got += source.read(base, most=29)
            cuts += 1
    producer.join()
    assert cuts > PRODUCED // 29
    end = got.pop()
    assert (end.json(), end.id) == ({"status": "cancelled"}, None)
    events = all_events(http, job)
    assert [message.id for message in got] == [event["id"] for event in events]
    assert [message.json() for message in got] == events
    assert [message.event for message in got] == [event["type"] for event in events]
    steps = [event["data"]["step"] for event in events if event["type"] == "metric"]
    assert steps == list(range(PRODUCED))
    assert source.read(gateway.url) == [end]  # who comes back after the last event is told that it was the last


def test_an_end_is_written_together_with_its_event(
    gateway: GatewayProcess, jobs: JobStore, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def look_while_the_store_is_slow(record: JobRecord) -> None:
        told.append((record.status, jobs.events(job)[-1][1]["data"]["status"]))

    monkeypatch.setattr(jobs.archive, "keep", look_while_the_store_is_slow)
    cancel(jobs, job)
    assert told == [("cancelled", "cancelled")]


def test_an_end_is_told_when_redis_had_lost_the_events_before(
    http: httpx.Client, gateway: GatewayProcess, jobs: JobStore, job: str
) -> None:
    before = all_events(http, job)
    jobs.redis.delete(stream(job))
    cancel(jobs, job)
    got = EventSource(f"/v1/jobs/{job}/events").read(gateway.url)
    assert [message.json() for message in got[:-1]] == all_events(http, job)
    assert ([message.event for message in got], got[0].json()) == (["job", "job", "end"], before[0])


def test_types_choose_what_is_sent(http: httpx.Client, gateway: GatewayProcess, jobs: JobStore, job: str) -> None:
    produce(jobs, job, 3)
    jobs.append_event(job, "checkpoint", {"step": 2})
    cancel(jobs, job)
    messages = EventSource(f"/v1/jobs/{job}/events").read(gateway.url, types=["checkpoint", "job"])
    assert [message.event for message in messages] == ["job", "checkpoint", "job", "end"]
    page = http.get(f"/v1/jobs/{job}/events", params={"types": "metric", "limit": 2}).json()
    assert ([event["data"]["step"] for event in page["data"]], page["has_more"]) == ([0, 1], True)


@pytest.mark.parametrize(
    ("headers", "params"),
    [
        ({"Last-Event-ID": "nonsense"}, {}),
        ({}, {"after": "\u0663-\u0661"}),
        ({}, {"limit": 0}),
        ({"Last-Event-ID": "1"}, {}),
    ],
)
def test_a_position_that_is_none_is_refused(http: httpx.Client, job: str, headers: dict, params: dict) -> None:
    headers["Accept"] = "text/event-stream"
    response = http.get(f"/v1/jobs/{job}/events", headers=headers, params=params)
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")


def test_a_stream_is_kept_alive_and_ends_at_once_when_the_gateway_stops(
    redis_handle: RedisHandle, tmp_path: Path
) -> None:
    with (
        gateway_process(tmp_path, redis_handle.url, sse_keep_alive_s="0.2") as gateway,
        httpx.Client(base_url=gateway.url) as http,
    ):
        dataset = http.post("/v1/datasets", content=b'{"prompt": "a"}\n').json()["id"]
        job = http.post("/v1/jobs", json={"data": {"dataset": dataset}}).json()["id"]
        source, seen = EventSource(f"/v1/jobs/{job}/events"), []
        reader = threading.Thread(target=lambda: seen.extend(read_until_cut(source, gateway)))
        reader.start()
        wait_until(lambda: source.comments.count("keep-alive") >= 2, what="keep-alive comments")
        gateway.process.terminate()
        gateway.process.wait(8)  # less than the time that uvicorn gives to requests under way
        reader.join()
        assert [message.event for message in seen] == ["job"]
        assert "Traceback" not in gateway.log.read_text()


def read_until_cut(source: EventSource, gateway: GatewayProcess) -> list[Message]:
    seen: list[Message] = []
    with contextlib.suppress(httpx.RemoteProtocolError), source.connect(gateway.url) as messages:
        seen += messages
    return seen


def test_a_trimmed_stream_is_read_from_the_artifact_store(
    http: httpx.Client, gateway: GatewayProcess, jobs: JobStore, job: str
) -> None:
    produce(jobs, job, 400)
    jobs.append_event(job, "warning", {"message": "kept at once, with what came before"})
    before = all_events(http, job)
    assert jobs.redis.xtrim(stream(job), maxlen=5, approximate=False) > 390
    cancel(jobs, job)
    after = all_events(http, job)
    assert after[:-1] == before
    got = EventSource(f"/v1/jobs/{job}/events", last_id=before[100]["id"]).read(gateway.url)
    assert [message.json() for message in got[:-1]] == after[101:]


def test_what_the_store_could_not_take_is_kept_when_it_can(
    http: httpx.Client, gateway: GatewayProcess, jobs: JobStore, job: str
) -> None:
    folder = gateway.store / "jobs" / job / "events"
    shutil.rmtree(folder)
    folder.write_text("in the way")
    jobs.append_event(job, "warning", {"message": "seen all the same"})
    last = all_events(http, job)[-1]
    assert last["data"] == {"message": "seen all the same"}
    folder.unlink()
    wait_until(lambda: jobs.event_log.archive.end(job) == last["id"], what="the reconciler keeps it")
    jobs.redis.delete(stream(job))
    assert all_events(http, job)[-1] == last


def test_ids_grow_when_redis_is_emptied_and_its_clock_is_behind(
    http: httpx.Client, jobs: JobStore, job: str, gateway: GatewayProcess
) -> None:
    last = all_events(http, job)[-1]["id"]
    later = f"{int(last.partition('-')[0]) + 3_600_000}-7"
    ahead = {"type": "warning", "at": now().isoformat(), "data": {"message": "an hour ahead"}}
    jobs.event_log.archive.extend(job, last, [(later, ahead)])
    jobs.redis.delete(stream(job))
    jobs.append_event(job, "warning", {"message": "next"})
    cancel(jobs, job)
    got = EventSource(f"/v1/jobs/{job}/events", last_id=later).read(gateway.url)
    assert [message.event for message in got] == ["warning", "job", "end"]
    assert got[0].json()["data"] == {"message": "next"}


def test_events_outlive_an_emptied_redis(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "redis") as first,
        gateway_process(tmp_path, first.url, reconcile_interval_s="0.2") as gateway,
        httpx.Client(base_url=gateway.url, timeout=30) as http,
    ):
        dataset = http.post("/v1/datasets", content=b'{"prompt": "a"}\n').json()["id"]
        job = http.post("/v1/jobs", json={"data": {"dataset": dataset}}).json()["id"]
        http.post(f"/v1/jobs/{job}/pause")
        http.post(f"/v1/jobs/{job}/resume")
        http.post(f"/v1/jobs/{job}/pause")
        before = all_events(http, job)
        source = EventSource(f"/v1/jobs/{job}/events")
        with source.connect(gateway.url) as messages:
            got = [next(messages) for _ in before]
            first.stop()
            with redis_server(tmp_path / "empty", first.port):
                got.append(next(messages))  # the same connection goes on
                assert got[-1].json()["data"]["restored"] is True
                wait_until(lambda: http.post(f"/v1/jobs/{job}/cancel").status_code == 200, what="cancelled")
                got += list(messages)
                assert got.pop().event == "end"
                after = all_events(http, job)
                assert [message.json() for message in got] == after
                assert after[: len(before)] == before
                again = EventSource(f"/v1/jobs/{job}/events", last_id=before[1]["id"]).read(gateway.url)
                assert [message.json() for message in again[:-1]] == after[2:]


def test_the_service_tells_which_jobs_and_that_workers_change(
    http: httpx.Client, gateway: GatewayProcess, jobs: JobStore, job: str
) -> None:
    source = EventSource("/v1/events")
    with source.connect(gateway.url) as messages:
        assert next(messages).event == "fleet"
        http.post(f"/v1/jobs/{job}/pause")
        change = next(message for message in messages if message.event == "job")
        assert (change.json()["id"], change.json()["status"]) == (job, "paused")
        worker = WorkerRecord(id="w1", host="h", pid=1, version="1", started_at=now(), seen_at=now())
        Fleet(jobs.redis).register(worker, 60)
        assert next(messages).json()["workers"] == 1
    http.post(f"/v1/jobs/{job}/cancel")
    assert http.delete(f"/v1/jobs/{job}").status_code == 200
    with source.connect(gateway.url) as messages:  # what changed meanwhile comes once, as it is now
        change = next(message for message in messages if message.event == "job")
        assert (change.json()["id"], change.json()["status"]) == (job, "deleted")
    page = http.get("/v1/events", params={"limit": 1000}).json()["data"]
    assert [change["status"] for change in page if change["id"] == job] == ["deleted"]
    jobs.redis.delete(CHANGES)
    with source.connect(gateway.url) as messages:
        assert next(messages).event == "reset"
