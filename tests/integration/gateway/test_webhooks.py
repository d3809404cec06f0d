"""Webhooks: what arrives is signed and comes at least once under one id, whatever dies in between."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis

from shared.artifact_store import LocalArtifactStore
from shared.errors import StatusReason
from shared.ids import new_id
from shared.job_store import JobStore
from shared.presets import resolve
from shared.schemas.job import JobRecord, JobStatus
from tests.support.gateway_process import GatewayProcess, free_port, gateway_process
from tests.support.redis_server import redis_server
from tests.support.wait import wait_until
from tests.support.webhook_receiver import Receiver, webhook_receiver
from tools.embedded_redis import RedisHandle

SETTINGS = {"webhook_retry_s": "0.1", "reconcile_interval_s": "0.2"}


@pytest.fixture(scope="module")
def hooked(redis_handle: RedisHandle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("hooked")
    hosts = ",".join(f"127.0.0.1:{port}" for port in PORTS)
    with gateway_process(folder, redis_handle.url, webhook_hosts=hosts, **SETTINGS) as process:
        yield process


PORTS = [free_port() for _ in range(3)]


@pytest.fixture
def api(hooked: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=hooked.url, timeout=30) as client:
        yield client
        for webhook in client.get("/v1/webhooks").json()["data"]:
            client.delete(f"/v1/webhooks/{webhook['id']}")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with webhook_receiver(PORTS[0]) as found:
        yield found


def subscribe(api: httpx.Client, receiver: Receiver, **fields: object) -> str:
    answer = api.post("/v1/webhooks", json={"url": receiver.url, **fields})
    assert answer.status_code == 201, answer.text
    receiver.secret = answer.json()["secret"]
    return answer.json()["id"]


def store_of(redis_handle: RedisHandle, gateway: GatewayProcess) -> JobStore:
    return JobStore(Redis.from_url(redis_handle.url, decode_responses=True), LocalArtifactStore(gateway.store))


def ended_job(jobs: JobStore, status: JobStatus = JobStatus.SUCCEEDED) -> str:
    """A job of a document that a worker has brought to its end."""
    document = {"preset": "tiny", "name": "told", "metadata": {"team": "a"}, "data": {"dataset": new_id("ds")}}
    job_id = jobs.create(resolve(document)).id

    def run(record: JobRecord) -> None:
        record.status = JobStatus.RUNNING

    def end(record: JobRecord) -> None:
        record.status = status
        if status == JobStatus.FAILED:
            record.status_reason, record.status_message = StatusReason.DIVERGED, "the loss is nan"

    jobs.update(job_id, run)
    jobs.update(job_id, end)
    return job_id


def deliveries(api: httpx.Client, webhook: str) -> list[dict]:
    return api.get(f"/v1/webhooks/{webhook}/deliveries").json()["data"]


def test_the_ends_that_were_asked_for_are_told_and_signed(
    api: httpx.Client, receiver: Receiver, redis_handle: RedisHandle, hooked: GatewayProcess
) -> None:
    webhook = subscribe(api, receiver, events=["job.succeeded", "job.failed"], description="ci")
    jobs = store_of(redis_handle, hooked)
    cancelled = jobs.create(resolve({"preset": "tiny", "data": {"dataset": new_id("ds")}})).id
    assert api.post(f"/v1/jobs/{cancelled}/cancel").json()["status"] == "cancelled"
    failed, succeeded = ended_job(jobs, JobStatus.FAILED), ended_job(jobs)
    wait_until(lambda: len(receiver.verified) >= 2)
    bodies = {body["data"]["id"]: body for _, body in receiver.verified}
    assert bodies.keys() == {failed, succeeded}
    assert bodies[succeeded]["type"] == "job.succeeded"
    assert bodies[failed]["data"]["status_reason"]["code"] == "diverged"
    data = bodies[failed]["data"]
    assert (data["name"], data["metadata"], data["links"]["self"]) == ("told", {"team": "a"}, f"/v1/jobs/{failed}")
    wait_until(lambda: {entry["status"] for entry in deliveries(api, webhook)} == {"delivered"})
    log = deliveries(api, webhook)
    assert {entry["job_id"] for entry in log} == {failed, succeeded}
    assert [attempt["status_code"] for entry in log for attempt in entry["attempts"]] == [204, 204]
    shown = api.get(f"/v1/webhooks/{webhook}").json()
    assert "secret" not in shown
    assert receiver.secret not in api.get("/v1/webhooks").text
    assert receiver.secret not in hooked.log.read_text()


def test_a_receiver_that_fails_gets_it_again_under_the_same_id(
    api: httpx.Client, receiver: Receiver, redis_handle: RedisHandle, hooked: GatewayProcess
) -> None:
    answers = [500, 302, 204]
    receiver.answer = lambda number: answers[number]
    webhook = subscribe(api, receiver)
    job = ended_job(store_of(redis_handle, hooked))
    wait_until(lambda: [entry["status"] for entry in deliveries(api, webhook)] == ["delivered"])
    (entry,) = deliveries(api, webhook)
    assert (entry["job_id"], entry["next_attempt_at"]) == (job, None)
    assert [attempt["status_code"] for attempt in entry["attempts"]] == answers
    assert "redirect" in entry["attempts"][1]["error"]
    assert set(receiver.ids()) == {entry["id"]}
    assert {request["path"] for request in receiver.requests} == {"/hook"}  # no redirect was followed
    assert len(receiver.verified) == 3


def test_one_that_is_gone_is_disabled(api: httpx.Client, receiver: Receiver) -> None:
    receiver.answer = lambda _: 410
    webhook = subscribe(api, receiver)
    sent = api.post(f"/v1/webhooks/{webhook}/test")
    assert (sent.status_code, sent.json()["event"], sent.json()["job_id"]) == (202, "webhook.test", None)
    wait_until(lambda: api.get(f"/v1/webhooks/{webhook}").json()["disabled"])
    assert [entry["status"] for entry in deliveries(api, webhook)] == ["failed"]
    assert api.post(f"/v1/webhooks/{webhook}/test").status_code == 409
    assert receiver.verified[0][1]["type"] == "webhook.test"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/hook",  # another port
        "http://localhost:{port}/hook",  # another name of the same address
        "http://127.0.0.1:{port}@evil.example/",
        "http://user:word@127.0.0.1:{port}/",
        "http://127.0.0.1.evil.example:{port}/",
        "http://2130706433:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://0:{port}/",
        "ftp://127.0.0.1:{port}/",
        "//127.0.0.1:{port}/",
        "",
    ],
)
def test_only_listed_hosts_are_taken(api: httpx.Client, url: str) -> None:
    refused = api.post("/v1/webhooks", json={"url": url.replace("{port}", str(PORTS[0]))})
    assert refused.status_code == 422, refused.text
    assert refused.json()["errors"][0]["pointer"] == "/url"


def test_nothing_is_lost_when_gateways_are_killed_and_redis_is_emptied(tmp_path: Path) -> None:
    """Killed in mid-sending, ended while no gateway lives, Redis emptied before anybody could look."""
    settings = {"webhook_hosts": f"127.0.0.1:{PORTS[1]}", **SETTINGS}
    with redis_server(tmp_path / "redis") as redis_handle, webhook_receiver(PORTS[1]) as receiver:
        receiver.answer = lambda number: "hang" if number == 0 else 204
        with gateway_process(tmp_path, redis_handle.url, **settings) as first:
            with httpx.Client(base_url=first.url) as api:
                webhook = subscribe(api, receiver)
            jobs = store_of(redis_handle, first)
            told = [ended_job(jobs)]
            wait_until(lambda: receiver.requests)
            first.process.kill()
            first.process.wait()
        told.append(ended_job(jobs))
        jobs.redis.flushall()
        with (
            gateway_process(tmp_path, redis_handle.url, **settings) as second,
            httpx.Client(base_url=second.url) as api,
        ):
            wait_until(lambda: [entry["status"] for entry in deliveries(api, webhook)] == ["delivered"] * 2)
            assert sorted(entry["job_id"] for entry in deliveries(api, webhook)) == sorted(told)
            assert {body["data"]["id"] for _, body in receiver.verified} == set(told)
            assert len(set(receiver.ids())) == 2
            jobs.redis.flushall()  # filled again, it tells nobody a second time
            wait_until(lambda: api.get("/v1/jobs").status_code == 200)
            wait_until(lambda: not jobs.untold_ends(10) and len(jobs.list_ids()) >= 2)
            assert len(deliveries(api, webhook)) == 2
            assert len(receiver.requests) == 3
