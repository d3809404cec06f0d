"""The life of jobs against a model: transitions, run leases, messages and idempotency keys in any order, with crashes.

A worker is played by hand: it takes a message, may freeze, lose its lease and thaw. Time is played, too: a lease ends
when the machine says so, and the reconciler has a clock of the machine's.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from redis import Redis

from services.gateway.idempotency import IdempotencyKeys
from services.gateway.reconciler import Reconciler
from shared import attempts
from shared.artifact_store import LocalArtifactStore
from shared.errors import StatusReason
from shared.ids import new_id
from shared.job_store import Fenced, JobStore
from shared.presets import resolve
from shared.queue import JobQueue
from shared.schemas.job import DONE_STAGES, ErrorDetail, JobRecord, JobStatus, Stage, StageStatus, UserAction
from shared.settings import Settings
from shared.state_machine import GOES_ON, STOPPING, TERMINAL, TRANSITIONS, ActionRefused

SETTINGS = Settings(max_attempts=3, retry_wait_s=10, run_lease_s=3)
LEASE_S = 600
SPEC = resolve({"data": {"dataset": "ds_x"}})
KEYS, BODIES = st.sampled_from(["k1", "k2"]), st.sampled_from(["b1", "b2"])
PICK = st.integers(0, 3)
REASONS = ("user_error", "oom_host", "upstream_verifier")


@dataclass
class Worker:
    """A run that believes to be the job's, and whether it is."""

    job_id: str
    token: str
    lost: bool = False  # its lease ended


@dataclass
class Seen:
    """What somebody who polls has seen of a job."""

    status: JobStatus
    version: int
    done: set[Stage] = field(default_factory=set)


class LifecycleMachine(RuleBasedStateMachine):
    redis: Redis
    url: str
    root: Path

    @initialize()
    def start(self) -> None:
        self.redis.flushall()
        self.clock = 0.0
        artifacts = LocalArtifactStore(self.root / new_id("store"))
        self.jobs, self.queue = JobStore(self.redis, artifacts), JobQueue(self.url)
        self.keys = IdempotencyKeys(self.redis, artifacts)
        self.reconcilers = [Reconciler(self.jobs, self.queue, SETTINGS, clock=lambda: self.clock) for _ in range(2)]
        self.workers: list[Worker] = []
        self.seen: dict[str, Seen] = {}
        self.claims: dict[str, tuple[str, str]] = {}

        for _ in range(2):
            self.create(new_id("job"))
        self.take(1)

    @rule(key=KEYS, body=BODIES)
    def submit(self, key: str, body: str) -> None:
        claim = self.keys.claim(key, body, new_id("job"))
        job_id = claim.job_id
        if key in self.claims:
            known_body, known_job = self.claims[key]
            assert (claim.state, job_id) == ("done" if body == known_body else "conflict", known_job)
            assert claim.state == "conflict" or claim.answer == f"answer of {job_id}"
            return
        assert claim.state == "new"
        self.keys.keep(key, body, job_id)
        self.create(job_id)
        self.keys.settle(key, body, job_id, f"answer of {job_id}")
        self.claims[key] = (body, job_id)

    def create(self, job_id: str) -> None:
        record = self.jobs.create(SPEC, job_id)
        self.seen[job_id] = Seen(record.status, record.version)
        self.queue.enqueue(job_id, record.attempt)

    @rule(pick=PICK, action=st.sampled_from([UserAction.PAUSE, UserAction.RESUME, UserAction.CANCEL]))
    def ask(self, pick: int, action: UserAction) -> None:
        record = self.jobs.get(self.job(pick))
        try:
            record = self.jobs.update(record.id, partial(attempts.decide, action=action))
        except ActionRefused:
            return
        if record.token is None:
            record = self.jobs.update(record.id, attempts.settle)
        if record.status in (JobStatus.PAUSED, JobStatus.CANCELLED):
            self.queue.remove(record.id, record.attempt)
        elif record.status == JobStatus.QUEUED:
            self.queue.enqueue(record.id, record.attempt)

    @rule(messages=st.integers(1, 3))
    def take(self, messages: int) -> None:
        """Workers take messages; a job is begun once an attempt, by whoever has its lease."""
        for _ in range(messages):
            message = self.redis.lpop(self.queue.queue.key)
            if message is not None:
                job_id, _, number = str(message).rpartition("-")
                self.begin(job_id, int(number))

    def begin(self, job_id: str, number: int) -> None:
        token = new_id("run")
        if not self.jobs.acquire_run(job_id, token, LEASE_S):
            return
        before = self.jobs.get(job_id)
        due = before.status in GOES_ON and before.token is None and before.attempt == number
        try:
            self.jobs.update(job_id, lambda record: attempts.begin(record, number, token, "worker"))
        except attempts.NotThisAttempt:
            assert not due
            self.jobs.release_run(job_id, token)
            return
        assert due
        self.workers.append(Worker(job_id, token))

    @rule(pick=PICK, number=st.integers(0, 1))
    def send_twice(self, pick: int, number: int) -> None:
        record = self.jobs.get(self.job(pick))
        self.queue.enqueue(record.id, max(1, record.attempt - number))

    @precondition(lambda self: self.workers)
    @rule(pick=PICK, what=st.sampled_from(["start", "finish"]), stage=st.sampled_from(list(Stage)))
    def work(self, pick: int, what: str, stage: Stage) -> None:
        def change(record: JobRecord) -> None:
            if record.stage(stage).status not in DONE_STAGES:
                done = what == "finish"
                record.stage(stage).status = StageStatus.SUCCEEDED if done else StageStatus.RUNNING

        self.as_worker(pick, change)

    @precondition(lambda self: self.workers)
    @rule(pick=PICK, how=st.sampled_from(["succeed", "hand over", "obey", *REASONS]))
    def end(self, pick: int, how: str) -> None:
        """A worker comes to an end of its attempt, and puts the next one in line."""
        worker = self.workers[pick % len(self.workers)]
        if how == "obey" and self.jobs.get(worker.job_id).status not in STOPPING:
            return
        ways = {"succeed": attempts.succeed, "hand over": attempts.hand_over, "obey": attempts.settle}
        record = self.as_worker(pick, ways[how] if how in ways else partial(_fail, reason=StatusReason(how)))
        if record is None:
            return
        self.workers.remove(worker)
        self.jobs.release_run(worker.job_id, worker.token)
        if record.status == JobStatus.RUNNING and record.retry_after_s is None:
            self.queue.enqueue(record.id, record.attempt)
        elif record.status == JobStatus.RUNNING:
            self.jobs.back_off(record.id, 600)

    @precondition(lambda self: self.workers)
    @rule(pick=PICK)
    def lose_lease(self, pick: int) -> None:
        """A worker freezes, or is killed; if it ever thaws, it is the same to it."""
        worker = self.workers[pick % len(self.workers)]
        worker.lost = True
        self.jobs.release_run(worker.job_id, worker.token)

    @rule(rounds=st.integers(1, 3), both=st.booleans())
    def reconcile(self, rounds: int, both: bool) -> None:
        for _ in range(rounds):
            self.clock += 5.0
            for reconciler in self.reconcilers[: 2 if both else 1]:
                reconciler.round()

    @rule(what=st.sampled_from(["the wait", "RQ", "Redis"]))
    def lose(self, what: str) -> None:
        """Time passes, RQ's keys are gone, or everything; live workers take their leases up again within moments."""
        if what == "Redis":
            self.redis.flushall()
            for worker in self.workers:
                if not worker.lost:
                    assert self.jobs.acquire_run(worker.job_id, worker.token, LEASE_S)
            return
        for key in self.redis.scan_iter("rq:*" if what == "RQ" else "eyrie:backoff:*"):
            self.redis.delete(key)

    @invariant()
    def status_only_moves_forward(self) -> None:
        for job_id, seen in self.seen.items():
            record = self.jobs.get(job_id)
            assert record.version >= seen.version
            assert record.status in reachable(seen.status)
            if seen.status in TERMINAL:
                assert record.version == seen.version, "terminal never changes"
            done = {stage.name for stage in record.stages if stage.status in DONE_STAGES}
            assert seen.done <= done
            self.seen[job_id] = Seen(record.status, record.version, done)
            assert sum(attempt.ended_at is None for attempt in record.attempts) == (record.token is not None)
            assert record.retries.get(StatusReason.WORKER_LOST, 0) < SETTINGS.max_attempts
            assert record.retries.get(StatusReason.OOM_HOST, 0) <= 1

    @invariant()
    def one_worker_at_most_may_write(self) -> None:
        for job_id in self.seen:
            owner = self.jobs.owner(job_id)
            assert sum(worker.token == owner for worker in self.workers if worker.job_id == job_id) <= 1

    def teardown(self) -> None:
        """When nothing breaks any more, every job ends that nobody has paused."""
        if not hasattr(self, "workers"):
            return
        for worker in self.workers:
            self.jobs.release_run(worker.job_id, worker.token)
        self.workers.clear()
        for _ in range(20):
            if all(self.jobs.get(job_id).status in {*TERMINAL, JobStatus.PAUSED} for job_id in self.seen):
                return
            self.lose("the wait")
            self.reconcile(2, both=True)
            self.take(len(self.seen))
            while self.workers:
                self.end(0, "succeed")
        raise AssertionError("some jobs never end")

    def job(self, pick: int) -> str:
        return sorted(self.seen)[pick % len(self.seen)]

    def as_worker(self, pick: int, change) -> JobRecord | None:
        """What a worker writes counts if the job is still its own; else it changes nothing and goes."""
        worker = self.workers[pick % len(self.workers)]
        before = self.jobs.get(worker.job_id)
        try:
            return self.jobs.update(worker.job_id, change, token=worker.token)
        except Fenced:
            assert before.token != worker.token
            assert self.jobs.get(worker.job_id) == before
            assert not self.jobs.append_event(worker.job_id, "metric", {}, token=worker.token)
            self.jobs.release_run(worker.job_id, worker.token)
            self.workers.remove(worker)
            return None


def _fail(record: JobRecord, reason: StatusReason) -> None:
    attempts.fail(record, ErrorDetail(reason=reason, message="it broke"), SETTINGS)


def reachable(status: JobStatus) -> set[JobStatus]:
    found = {status}
    while more := {following for known in found for following in TRANSITIONS[known]} - found:
        found |= more
    return found


def test_jobs_live_as_the_model_does(redis_handle, tmp_path: Path) -> None:

    with Redis.from_url(redis_handle.url, decode_responses=True) as redis:
        LifecycleMachine.redis, LifecycleMachine.url, LifecycleMachine.root = redis, redis_handle.url, tmp_path
        bounds = settings(max_examples=25, stateful_step_count=40, deadline=None, derandomize=True, database=None)
        run_machine(LifecycleMachine, settings=bounds)
