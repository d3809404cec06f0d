"""The reconciler on a real Redis, with a clock of the test's own: it mends what was lost, and only that."""

import os
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from redis import Redis

from services.gateway import rebuild, reconciler
from services.gateway.idempotency import IdempotencyKeys
from services.gateway.reconciler import LEASE_KEY, Reconciler
from shared import attempts
from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError, StatusReason
from shared.ids import new_id
from shared.job_store import JobStore
from shared.presets import resolve
from shared.queue import JobQueue
from shared.schemas.job import ErrorDetail, JobRecord, JobStatus, Stage, StageStatus, UserAction
from shared.settings import Settings
from tests.support.wait import wait_until
from tools.embedded_redis import RedisHandle


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class World:
    """A store, a queue and a reconciler on an empty Redis."""

    def __init__(self, redis: Redis, url: str, root: Path) -> None:
        self.redis = redis
        self.jobs = JobStore(redis, LocalArtifactStore(root))
        self.queue = JobQueue(url)
        self.clock = Clock()
        self.settings = Settings(run_lease_s=30, max_attempts=3, reconcile_interval_s=5)
        self.reconciler = self.another()

    def another(self) -> Reconciler:
        return Reconciler(self.jobs, self.queue, self.settings, clock=self.clock)

    def pass_time(self, seconds: float) -> None:
        """One round now and one after `seconds`."""
        self.reconciler.round()
        self.clock.seconds += seconds
        self.reconciler.round()

    def create(self) -> str:
        record = self.jobs.create(resolve({"data": {"dataset": "ds_x"}}))
        self.queue.enqueue(record.id, 1)
        return record.id

    def run(self, job_id: str, attempt: int = 1) -> None:
        """A worker takes the job and falls silent: no lease is left."""

        def change(record: JobRecord) -> None:
            record.status, record.token = JobStatus.RUNNING, f"token-{attempt}"
            record.stage(Stage.PREPARE).status = StageStatus.SUCCEEDED
            record.stage(Stage.TRAIN).status = StageStatus.RUNNING

        self.queue.remove(job_id, attempt)
        self.jobs.update(job_id, change)


@pytest.fixture
def world(redis_handle: RedisHandle, tmp_path: Path) -> Iterator[World]:
    with Redis.from_url(redis_handle.url, decode_responses=True) as redis:
        redis.flushall()
        yield World(redis, redis_handle.url, tmp_path)


def test_a_lost_message_is_sent_again_after_a_while(world: World) -> None:
    job_id = world.create()
    world.queue.remove(job_id, 1)
    world.pass_time(9)
    assert not world.queue.is_waiting(job_id, 1)
    world.clock.seconds += 2
    world.reconciler.round()
    assert world.queue.is_waiting(job_id, 1)
    world.pass_time(60)
    assert world.queue.waiting() == 1


def test_all_rq_keys_lost_lose_no_job(world: World) -> None:
    ids = [world.create() for _ in range(3)]
    for key in world.redis.scan_iter("rq:*"):
        world.redis.delete(key)
    world.pass_time(11)
    assert [world.queue.is_waiting(job_id, 1) for job_id in ids] == [True] * 3


def test_a_lost_worker_starts_another_attempt(world: World) -> None:
    job_id = world.create()
    world.run(job_id)
    world.pass_time(11)
    record = world.jobs.get(job_id)
    assert (record.status, record.attempt, record.token) == (JobStatus.RUNNING, 2, None)
    assert record.status_reason == "worker_lost"
    assert record.stage(Stage.PREPARE).status == StageStatus.SUCCEEDED
    assert record.stage(Stage.TRAIN).status == StageStatus.PENDING
    assert world.queue.is_waiting(job_id, 2)


def test_an_attempt_that_waits_long_in_line_is_not_lost(world: World) -> None:
    job_id = world.create()
    world.run(job_id)
    world.pass_time(11)
    world.pass_time(100_000)
    assert world.jobs.get(job_id).attempt == 2
    world.queue.remove(job_id, 2)
    world.pass_time(11)
    assert world.queue.is_waiting(job_id, 2)
    assert world.jobs.get(job_id).attempt == 2


def test_a_live_run_is_left_alone_whatever_the_clocks_say(world: World) -> None:
    job_id = world.create()
    world.run(job_id)
    world.jobs.acquire_run(job_id, "token-1", 600)
    world.pass_time(100_000)
    assert world.jobs.get(job_id).token == "token-1"


def test_a_worker_lost_again_and_again_fails_the_job(world: World) -> None:
    job_id = world.create()
    for attempt in (1, 2, 3):
        world.run(job_id, attempt)
        world.pass_time(11)
    record = world.jobs.get(job_id)
    assert (record.status, record.attempt, record.status_reason) == (JobStatus.FAILED, 3, "worker_lost")
    assert record.error is not None
    assert record.error.hint
    assert record.stage(Stage.TRAIN).status == StageStatus.FAILED
    assert world.queue.waiting() == 0


@pytest.mark.parametrize(
    ("status", "end"), [(JobStatus.CANCELLING, JobStatus.CANCELLED), (JobStatus.PAUSING, JobStatus.PAUSED)]
)
def test_what_a_lost_worker_was_asked_to_do_is_done(world: World, status: JobStatus, end: JobStatus) -> None:
    job_id = world.create()
    world.run(job_id)
    world.jobs.update(job_id, lambda record: setattr(record, "status", status))
    world.pass_time(11)
    record = world.jobs.get(job_id)
    assert (record.status, record.token, world.queue.waiting()) == (end, None, 0)
    assert all(stage.status != StageStatus.RUNNING for stage in record.stages)


def test_cancelling_an_attempt_that_waits_in_line_takes_it_out(world: World) -> None:
    job_id = world.create()
    world.run(job_id)
    world.pass_time(11)
    world.jobs.update(job_id, lambda record: setattr(record, "status", JobStatus.CANCELLING))
    world.pass_time(11)
    assert (world.jobs.get(job_id).status, world.queue.waiting()) == (JobStatus.CANCELLED, 0)


def test_two_reconcilers_at_once_start_one_attempt(world: World) -> None:
    job_id = world.create()
    world.run(job_id)
    other = world.another()
    both = (world.reconciler, other)
    for each in both:
        each.round()
    world.clock.seconds += 11
    threads = [threading.Thread(target=each.round) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.jobs.get(job_id).attempt == 2
    assert world.queue.waiting() == 1


def test_an_emptied_redis_is_rebuilt_from_the_store(world: World) -> None:
    waiting, running, ended = (world.create() for _ in range(3))
    world.run(running)
    world.run(ended)
    world.jobs.update(ended, lambda record: setattr(record, "status", JobStatus.SUCCEEDED))
    before = world.jobs.get(ended)
    world.redis.flushall()
    world.reconciler.round()
    assert world.jobs.get(ended) == before
    assert world.jobs.get(waiting).status == JobStatus.QUEUED
    kept = world.jobs.get(running)
    assert (kept.status, kept.token, kept.attempt) == (JobStatus.RUNNING, "token-1", 1)
    assert kept.stage(Stage.PREPARE).status == StageStatus.SUCCEEDED
    assert world.jobs.list_ids() == [ended, running, waiting]
    assert world.jobs.active_ids() == [waiting, running]
    assert world.queue.jobs_in_line() == [waiting]
    world.pass_time(11)  # no worker comes back for it
    assert world.queue.is_waiting(running, 2)


def test_a_damaged_document_in_the_store_stops_nothing(world: World) -> None:
    job_id = world.create()
    world.jobs.artifacts.write("jobs/job_00000000000000000000/job.json", b"{")
    world.redis.flushall()
    world.reconciler.round()
    assert world.jobs.list_ids() == [job_id]


@pytest.mark.parametrize("document", [None, b"{"])
def test_a_job_that_could_not_be_read_once_is_put_back_after_redis_is_emptied(
    world: World, document: bytes | None
) -> None:
    job_id, path = world.create(), world.jobs.artifacts.root / "jobs"
    admitted = (path / job_id / "job.json").read_bytes()
    world.redis.flushall()
    (path / job_id / "job.json").unlink()
    if document is not None:
        (path / job_id / "job.json").write_bytes(document)
    world.reconciler.round()
    assert world.jobs.list_ids() == []
    (path / job_id / "job.json").write_bytes(admitted)  # its admission has ended, or an operator has restored it
    world.redis.flushall()
    world.reconciler.round()
    assert (world.jobs.list_ids(), world.queue.jobs_in_line()) == ([job_id], [job_id])


def test_a_job_whose_gateway_died_as_it_was_admitted_is_put_back_with_redis_as_it_was(world: World) -> None:
    job_id, path = world.create(), world.jobs.artifacts.root / "jobs"
    world.redis.flushall()
    (path / job_id / "job.json").rename(path / "admitted")
    world.reconciler.round()
    (path / "admitted").rename(path / job_id / "job.json")
    for _ in range(reconciler.HOUSEKEEPING_ROUNDS):
        world.reconciler.round()
    assert (world.jobs.list_ids(), world.queue.jobs_in_line()) == ([job_id], [job_id])


def test_more_unreadable_jobs_than_a_batch_end_a_rebuild(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "BATCH", 2)
    for _ in range(5):
        world.jobs.artifacts.write(f"jobs/{new_id('job')}/job.json", b"{")
        world.jobs.artifacts.folder(f"jobs/{new_id('job')}")
    assert world.reconciler.rebuilder.finish(10)
    assert any(world.reconciler.rebuilder.step() for _ in range(4))


def test_one_of_several_holds_the_lease_and_gives_it_back(world: World) -> None:
    world.settings = Settings(reconcile_interval_s=0.01)
    first, second = world.another(), world.another()
    stops = [threading.Event(), threading.Event()]
    threads = [threading.Thread(target=r.run, args=(s,)) for r, s in zip((first, second), stops, strict=True)]
    for thread in threads:
        thread.start()
    holder = wait_until(lambda: world.redis.get(LEASE_KEY), what="the lease is taken")
    held, other = (0, second.holder) if holder == first.holder else (1, first.holder)
    stops[held].set()
    wait_until(lambda: world.redis.get(LEASE_KEY) == other, what="the other one takes over")
    stops[1 - held].set()
    for thread in threads:
        thread.join(10)
    assert world.redis.get(LEASE_KEY) is None


def test_what_a_dead_gateway_left_of_an_upload_is_removed_after_a_day(world: World) -> None:
    old, fresh = (world.jobs.artifacts.staging_file() for _ in range(2))
    for file in (old, fresh):
        file.write_bytes(b"half a file")
    two_days_ago = fresh.stat().st_mtime - 2 * 86_400
    os.utime(old, (two_days_ago, two_days_ago))
    world.reconciler.round()
    assert (old.exists(), fresh.exists()) == (False, True)


@pytest.mark.parametrize("fate", ["stuck", "failed", "finished", "unknown"])
def test_whatever_rq_did_to_a_message_its_job_comes_back_in_line_once(world: World, fate: str) -> None:
    job_id = world.create()
    message = f"{job_id}-1"
    assert world.redis.lpop(world.queue.queue.key) == message
    if fate == "stuck":
        world.redis.lpush(world.queue.queue.intermediate_queue_key, message)
    elif fate == "unknown":
        world.redis.delete(f"rq:job:{message}")
    else:
        world.queue.queue.fetch_job(message).set_status(fate)
    world.pass_time(11)
    world.pass_time(60)
    assert world.queue.queue.get_job_ids() == [message]
    assert world.redis.llen(world.queue.queue.intermediate_queue_key) == 0


def test_a_message_that_is_sent_again_does_not_expire_in_a_long_line(world: World) -> None:
    job_id = world.create()
    world.redis.expire(f"rq:job:{job_id}-1", 60)  # RQ, after a worker has left the job for another one
    world.queue.enqueue(job_id, 1)
    assert world.redis.ttl(f"rq:job:{job_id}-1") == -1


def test_an_attempt_that_has_to_wait_is_put_in_line_when_its_time_has_passed(world: World) -> None:
    job_id = world.create()
    world.run(job_id)
    detail = ErrorDetail(reason=StatusReason.UPSTREAM_VERIFIER, message="it is gone")
    world.jobs.update(job_id, lambda record: attempts.fail(record, detail, world.settings))
    world.jobs.back_off(job_id, 600)
    world.pass_time(100_000)
    assert world.queue.waiting() == 0
    world.redis.delete(f"eyrie:backoff:{job_id}")
    world.reconciler.round()
    assert world.queue.is_waiting(job_id, 2)
    assert world.jobs.get(job_id).retry_after_s is None
    world.redis.flushall()  # and with it the wait
    world.reconciler.round()
    assert world.queue.is_waiting(job_id, 2)


def test_a_place_that_was_taken_for_a_job_that_never_came_is_given_back(world: World) -> None:
    assert world.jobs.reserve("job_00000000000000000000", 1)
    assert not world.jobs.reserve("job_00000000000000000001", 1)
    world.pass_time(11)
    assert world.jobs.reserve("job_00000000000000000001", 1)


def test_a_job_that_is_made_twice_at_once_and_runs_by_then_takes_no_place_among_those_that_wait(world: World) -> None:
    job_id = world.create()
    world.run(job_id)
    assert world.jobs.reserve(job_id, 1)  # of a second request, which has looked for the job before it was there
    assert world.jobs.ids_in(JobStatus.QUEUED) == set()
    world.jobs.give_place_back(job_id)
    assert world.jobs.reserve("job_00000000000000000001", 1)


def test_a_record_that_redis_alone_has_lost_is_put_back(world: World) -> None:
    waiting, running = world.create(), world.create()
    world.run(running)
    world.queue.remove(waiting, 1)
    world.redis.delete(f"eyrie:job:{waiting}", f"eyrie:job:{running}")
    for _ in range(3):
        world.pass_time(11)
    assert sorted(world.queue.jobs_in_line()) == sorted([waiting, running])
    assert world.jobs.get(running).attempt == 2


def test_a_state_that_the_store_could_not_take_is_kept_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = world.create()
    with monkeypatch.context() as full:
        full.setattr(world.jobs.artifacts, "write", no_space)
        world.jobs.update(job_id, lambda record: attempts.decide(record, UserAction.PAUSE))
    world.reconciler.round()
    world.redis.flushall()
    assert world.jobs.get(job_id).status == JobStatus.PAUSED


def test_a_store_that_is_slow_to_refuse_keeps_no_lost_worker_from_being_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, calls = world.jobs.artifacts, []
    running = world.create()
    world.run(running)
    others = [world.create() for _ in range(12)]
    world.reconciler.round()

    def refuse(*_: object) -> None:
        calls.append(1)
        world.clock.seconds += 20  # such as a bucket whose address does not answer
        raise ArtifactStoreError("away")

    for name in ("write", "list", "now"):
        monkeypatch.setattr(store, name, refuse)
    monkeypatch.setattr(time, "monotonic", world.clock)
    for job_id in others:
        world.jobs.update(job_id, lambda record: setattr(record, "status", JobStatus.PAUSED))
    calls.clear()
    world.reconciler.round()
    assert world.queue.is_waiting(running, 2)
    assert len(calls) <= 4, "its record and its event, and one each of what waits to be kept"


def test_a_round_reads_few_records_however_many_jobs_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [world.create() for _ in range(40)]
    for job_id in ids[:30]:
        world.queue.remove(job_id, 1)
    world.run(ids[39])
    monkeypatch.setattr(reconciler, "MOST_RECORDS", 10)
    read: list[int] = []
    get_many = world.jobs.get_many

    def count(wanted: list[str]) -> Iterator[JobRecord]:
        read.append(len(wanted))
        return get_many(wanted)

    monkeypatch.setattr(world.jobs, "get_many", count)
    for _ in range(5):
        world.pass_time(11)
    assert max(read) == 10
    assert set(world.queue.jobs_in_line()) == set(ids)
    assert world.jobs.get(ids[39]).attempt == 2


def test_an_unread_key_of_a_day_ago_is_forgotten(world: World) -> None:
    keys = IdempotencyKeys(world.redis, world.jobs.artifacts)
    for key in ("old", "new"):
        keys.keep(key, "body", "job_x")
    old, new = (
        world.jobs.artifacts.path(f"idempotency/{sha256(key.encode()).hexdigest()}.json") for key in ("old", "new")
    )
    os.utime(old, (new.stat().st_mtime - 90_000,) * 2)
    world.reconciler.round()
    assert (old.exists(), new.exists()) == (False, True)


def no_space(*_: object) -> None:
    raise ArtifactStoreError("the artifact store cannot be used: No space left on device")
