"""Pause, resume, cancel and retry over HTTP; limits and idempotency under load; nothing decided is forgotten."""

import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from services.gateway.reconciler import Reconciler
from shared import attempts
from shared.artifact_store import LocalArtifactStore
from shared.errors import StatusReason
from shared.job_store import JobStore
from shared.queue import JobQueue
from shared.schemas.job import ErrorDetail, JobStatus, Stage, StageStatus, now
from shared.settings import Settings
from tests.integration.conftest import open_redis
from tests.support.gateway_process import gateway_process
from tests.support.redis_server import redis_server
from tests.support.wait import wait_until
from tools.embedded_redis import bundled_redis

SETTINGS = Settings()
PATIENT = {"reconcile_interval_s": "600"}  # nobody mends what a test has made
EAGER = {"reconcile_interval_s": "0.2", "run_lease_s": "3"}


class World:
    """A gateway, and a worker's view of its jobs."""

    def __init__(self, folder: Path, stack: ExitStack, binary: str | None = None, **settings: str) -> None:
        self.folder, self.stack = folder, stack
        self.redis_server = stack.enter_context(redis_server(folder / "redis", binary=binary))
        self.gateway = self.start_gateway(**settings)
        self.http = stack.enter_context(httpx.Client(base_url=self.gateway.url, timeout=60))
        self.redis = stack.enter_context(open_redis(self.redis_server.url))
        self.jobs = JobStore(self.redis, LocalArtifactStore(self.gateway.store))
        self.queue = JobQueue(self.redis_server.url)
        self.dataset = self.http.post("/v1/datasets", content=b'{"prompt": "a"}\n{"prompt": "b"}\n').json()["id"]

    def start_gateway(self, **settings: str):
        return self.stack.enter_context(gateway_process(self.folder, self.redis_server.url, **settings))

    def post(self, key: str | None = None, **fields) -> httpx.Response:
        headers = {"Idempotency-Key": key} if key else {}
        return self.http.post("/v1/jobs", json={"data": {"dataset": self.dataset}, **fields}, headers=headers)

    def submit(self) -> str:
        return self.post().json()["id"]

    def ask(self, job_id: str, action: str) -> httpx.Response:
        return self.http.post(f"/v1/jobs/{job_id}/{action}")

    def show(self, job_id: str) -> dict:
        return self.http.get(f"/v1/jobs/{job_id}").json()

    def run(self, job_id: str, *, alive: bool = True) -> str:
        """A worker takes the job and trains; a dead one has no lease."""
        record = self.jobs.get(job_id)
        self.queue.remove(job_id, record.attempt)
        token = f"token-{job_id}-{record.attempt}"
        if alive:
            self.jobs.acquire_run(job_id, token, 600)

        def begin(record) -> None:
            attempts.begin(record, record.attempt, token, "worker")
            record.stage(Stage.PREPARE).status = StageStatus.SUCCEEDED
            record.stage(Stage.TRAIN).status = StageStatus.RUNNING

        self.jobs.update(job_id, begin)
        return token

    def end(self, job_id: str, how) -> None:
        self.jobs.update(job_id, how)
        token = self.jobs.run_token(job_id)
        if token:
            self.jobs.release_run(job_id, token)

    def fail(self, job_id: str, reason: StatusReason = StatusReason.USER_ERROR) -> None:
        detail = ErrorDetail(reason=reason, message="it cannot work")
        self.end(job_id, partial(attempts.fail, detail=detail, settings=SETTINGS))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("world"), stack, **PATIENT)


def refused(response: httpx.Response, status: str) -> bool:
    assert response.headers["content-type"] == "application/problem+json"
    error = response.json()["errors"][0]
    return (response.status_code, error["pointer"], error["message"]) == (409, "/status", status)


def test_the_first_in_line_is_at_place_1(world: World) -> None:
    assert world.queue.waiting() == 0
    first, second, third = (world.submit() for _ in range(3))
    assert [world.show(job_id)["queue"]["position"] for job_id in (first, second, third)] == [1, 2, 3]
    world.run(first)
    world.ask(second, "pause")
    assert [world.show(job_id)["queue"]["position"] for job_id in (first, second, third)] == [None, None, 1]
    world.ask(second, "resume")
    listed = {job["id"]: job["queue"]["position"] for job in world.http.get("/v1/jobs").json()["data"]}
    assert [listed[job_id] for job_id in (first, second, third)] == [None, 2, 1]


def test_a_waiting_job_is_paused_and_resumed_and_asking_twice_changes_nothing(world: World) -> None:
    job_id = world.submit()
    for _ in range(2):
        paused = world.ask(job_id, "pause").json()
        assert (paused["status"], paused["status_reason"]["code"]) == ("paused", "stopped_by_user")
        assert not world.queue.is_waiting(job_id, 1)
    version = world.jobs.get(job_id).version
    world.ask(job_id, "pause")
    assert world.jobs.get(job_id).version == version
    for _ in range(2):
        resumed = world.ask(job_id, "resume")
        assert (resumed.status_code, resumed.json()["status"], resumed.json()["status_reason"]) == (200, "queued", None)
    assert world.queue.queue.get_job_ids().count(f"{job_id}-1") == 1


def test_a_running_job_is_pausing_until_its_worker_has_stopped_and_goes_on_as_another_attempt(world: World) -> None:
    job_id = world.submit()
    world.run(job_id)
    assert refused(world.ask(job_id, "resume"), "running")
    for _ in range(2):
        assert world.ask(job_id, "pause").json()["status"] == "pausing"
    assert refused(world.ask(job_id, "resume"), "pausing")
    world.end(job_id, attempts.settle)
    shown = world.show(job_id)
    assert (shown["status"], shown["attempts"][0]["reason"], shown["attempts"][0]["stage"]) == (
        "paused",
        "stopped_by_user",
        "train",
    )
    assert world.ask(job_id, "resume").json()["attempt"] == 2
    assert world.queue.is_waiting(job_id, 2)
    world.run(job_id)
    assert world.ask(job_id, "resume").status_code == 200  # said again: it goes on already
    world.ask(job_id, "pause")
    assert world.ask(job_id, "cancel").json()["status"] == "cancelling"
    assert refused(world.ask(job_id, "pause"), "cancelling")


def test_a_job_that_waits_for_its_next_attempt_stops_at_once(world: World) -> None:
    for action, end in (("pause", "paused"), ("cancel", "cancelled")):
        job_id = world.submit()
        world.run(job_id)
        world.fail(job_id, StatusReason.UPSTREAM_VERIFIER)
        shown = world.show(job_id)
        assert (shown["status"], shown["attempt"], shown["status_reason"]["code"]) == (
            "running",
            2,
            "upstream_verifier",
        )
        assert "trying again" in shown["status_reason"]["message"]
        assert world.ask(job_id, action).json()["status"] == end


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
def test_what_has_ended_is_neither_paused_nor_resumed(status: str, world: World) -> None:
    job_id = world.submit()
    if status == "cancelled":
        world.ask(job_id, "cancel")
    else:
        world.run(job_id)
        world.end(job_id, attempts.succeed) if status == "succeeded" else world.fail(job_id)
    before = world.jobs.get(job_id)
    assert refused(world.ask(job_id, "pause"), status)
    assert refused(world.ask(job_id, "resume"), status)
    assert world.ask(job_id, "cancel").status_code == (200 if status == "cancelled" else 409)
    assert world.jobs.get(job_id) == before


def test_a_retry_is_one_new_job_of_the_same_document_however_often_it_is_asked_for(world: World) -> None:
    job_id = world.submit()
    assert refused(world.ask(job_id, "retry"), "queued")
    world.run(job_id)
    assert refused(world.ask(job_id, "retry"), "running")
    world.fail(job_id)
    ended = world.show(job_id)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: world.ask(job_id, "retry"), range(20)))
    assert {answer.status_code for answer in answers} <= {200, 201}
    again = answers[0].json()
    assert {answer.json()["id"] for answer in answers} == {again["id"]}
    assert (again["retry_of"], again["status"], again["spec"]) == (job_id, "queued", ended["spec"])
    assert answers[0].headers["location"] == f"/v1/jobs/{again['id']}"
    assert world.queue.is_waiting(again["id"], 1)
    assert world.show(job_id) == ended | {"retried_as": again["id"]}
    world.ask(again["id"], "cancel")
    third = world.ask(job_id, "retry")
    assert (third.status_code, again["id"] in third.json()["detail"]) == (409, True)
    assert world.ask(again["id"], "retry").json()["retry_of"] == again["id"]


def test_a_retry_of_what_cannot_work_any_more_is_refused_and_leaves_nothing(world: World) -> None:
    job_id = world.submit()
    world.ask(job_id, "cancel")
    folder = world.gateway.store / "datasets" / world.dataset
    hidden = folder.rename(world.folder / "hidden")
    try:
        assert world.ask(job_id, "retry").status_code == 422
        assert world.show(job_id)["retried_as"] is None
    finally:
        hidden.rename(folder)
    assert world.ask(job_id, "retry").status_code == 201


@pytest.mark.parametrize("count", [20, 50])
def test_case_33_one_key_sent_at_once_is_one_job_and_another_body_is_refused(count: int, world: World) -> None:
    before = len(world.jobs.list_ids())
    key = f"at once {count}"
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda _: world.post(key), range(count)))
    assert {answer.status_code for answer in answers} <= {200, 201, 409}
    assert [answer.status_code for answer in answers].count(201) == 1
    for answer in answers:
        if answer.status_code == 409:
            assert (answer.headers["x-should-retry"], answer.headers["retry-after"]) == ("false", "1")
    made = {answer.json()["id"] for answer in answers if answer.status_code < 300}
    again, other = world.post(key), world.post(key, name="another document")
    assert ({again.json()["id"]}, again.status_code, other.status_code) == (made, 200, 422)
    assert len(world.jobs.list_ids()) == before + 1


def test_no_more_jobs_wait_than_may_however_many_come_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack, max_queued_jobs="5", **PATIENT)
        with ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(lambda _: world.post(), range(40)))
        made = [answer.json()["id"] for answer in answers if answer.status_code == 201]
        assert (len(made), {answer.status_code for answer in answers}) == (5, {201, 429})
        assert world.queue.waiting() == len(list((world.gateway.store / "jobs").iterdir())) == 5
        world.ask(made[0], "cancel")
        world.run(made[1])
        assert [world.post().status_code for _ in range(3)] == [201, 201, 429]


@pytest.mark.parametrize("binary", [bundled_redis(), shutil.which("redis-server")], ids=["redis-6.2", "installed"])
def test_case_34_an_emptied_redis_forgets_no_decision_no_attempt_and_no_key(tmp_path: Path, binary: str | None) -> None:
    if binary is None:
        pytest.skip("this machine has no such Redis")
    with ExitStack() as stack:
        world = World(tmp_path, stack, binary, **EAGER)
        keyed = world.post("key").json()["id"]
        waiting, paused, pausing, cancelling, running, done = (world.submit() for _ in range(6))
        world.ask(paused, "pause")
        for job_id in (pausing, cancelling, running, done):
            world.run(job_id)
        world.end(running, attempts.hand_over)
        world.run(running)
        world.end(done, attempts.succeed)
        world.ask(pausing, "pause")
        world.ask(cancelling, "cancel")
        ids = [keyed, waiting, paused, pausing, cancelling, running, done]
        before = {job_id: world.jobs.get(job_id) for job_id in ids}
        world.redis.flushall()
        assert world.post("key", name="another document").status_code == 422
        assert world.post("key").json()["id"] == keyed
        for job_id in (paused, done, keyed, waiting):
            assert world.jobs.get(job_id) == before[job_id]
        listed = world.http.get("/v1/jobs").json()["data"]
        assert sorted(job["id"] for job in listed) == sorted(ids)
        assert world.jobs.get(running).attempts == before[running].attempts
        for job_id, end in ((pausing, "paused"), (cancelling, "cancelled")):
            wait_until(lambda i=job_id, e=end: world.show(i)["status"] == e, what=f"{job_id} is {end}")
        wait_until(lambda: world.queue.is_waiting(running, 3), what="the run is given on")
        assert world.show(running)["status"] == "running"
        assert world.show(running)["attempts"][0]["reason"] == "handed_over"
        assert world.jobs.get(running).retries == {StatusReason.WORKER_LOST: 1}
        wait_until(lambda: world.queue.is_waiting(waiting, 1), what="back in line")
        assert world.ask(paused, "resume").json()["status"] == "queued"


def test_two_reconcilers_at_once_start_every_lost_job_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack, **PATIENT)
        lost = [world.submit() for _ in range(10)]
        for job_id in lost:
            world.run(job_id, alive=False)
        settings = Settings(reconcile_interval_s=0.2, run_lease_s=3)

        def mend(name: str) -> None:
            """What a gateway does that believes to have the lease, from its own connection."""
            with open_redis(world.redis_server.url) as redis:
                jobs = JobStore(redis, LocalArtifactStore(world.gateway.store))
                reconciler = Reconciler(jobs, JobQueue(world.redis_server.url), settings)

                def mended() -> bool:
                    reconciler.round()
                    return all(jobs.get(job_id).attempt == 2 for job_id in lost)

                wait_until(mended, interval_s=0.01, what=f"{name} sees all mended")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(mend, ("one", "another")))
        wait_until(lambda: len(world.queue.jobs_in_line()) == 10, what="all are in line")
        assert all(world.jobs.get(job_id).retries == {StatusReason.WORKER_LOST: 1} for job_id in lost)


def test_another_gateway_mends_when_the_first_is_killed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack, **EAGER)
        other = world.start_gateway(**EAGER)
        job_id = world.submit()
        world.run(job_id, alive=False)
        world.gateway.process.send_signal(signal.SIGKILL)
        with httpx.Client(base_url=other.url, timeout=30) as http:
            answer = partial(http.get, f"/v1/jobs/{job_id}")
            wait_until(lambda: answer().json()["attempt"] == 2, what="the other gateway takes over")
            assert answer().json()["status_reason"]["code"] == "worker_lost"


def test_clocks_of_a_job_never_go_back(world: World) -> None:
    job_id = world.submit()
    world.run(job_id)
    world.end(job_id, attempts.hand_over)
    first = world.jobs.get(job_id).attempts[0]
    assert first.ended_at is not None
    assert first.started_at <= first.ended_at <= now()
    assert world.jobs.get(job_id).status == JobStatus.RUNNING
