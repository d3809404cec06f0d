"""Jobs through a real gateway and real workers while both are asked to stop, and while things break under them."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest
from rq.job import Job
from rq.serializers import JSONSerializer

from shared.errors import StatusReason
from shared.schemas.job import DONE_STAGES, JobStatus, Stage, StageStatus
from tests.support.gateway_process import gateway_process
from tests.support.stage_runs import prompts
from tests.support.wait import wait_until
from tests.support.worker_site import GENERATE, assert_whole

ROWS = 12
WAIT_S = 60
EAGER = {"reconcile_interval_s": "0.2", "run_lease_s": "3"}
ORDER = {"queued": 0, "running": 1, "succeeded": 2, "failed": 2, "cancelled": 2}
DONE = {status.value for status in DONE_STAGES}


@contextmanager
def api(site) -> Iterator[httpx.Client]:
    """A gateway before the site's jobs, that mends what is lost within seconds."""
    with (
        gateway_process(site.folder, site.redis.url, **EAGER) as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
    ):
        yield http


class Watcher:
    """Somebody who polls a job all the time, and notes whatever went back."""

    def __init__(self, http: httpx.Client, job_id: str, *, percent: bool = True) -> None:
        self.http, self.job_id, self.percent = http, job_id, percent
        self.seen: list[dict] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> "Watcher":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _poll(self) -> None:
        while not self.stop.wait(0.03):
            answer = self.http.get(f"/v1/jobs/{self.job_id}")
            if answer.status_code != 503:
                answer.raise_for_status()
                self.seen.append(answer.json())

    def went_back(self) -> list[str]:
        found = []
        for before, after in zip(self.seen, self.seen[1:], strict=False):
            if ORDER[after["status"]] < ORDER[before["status"]] or after["attempt"] < before["attempt"]:
                found.append(f"{before['status']} {before['attempt']} to {after['status']} {after['attempt']}")
            if self.percent and after["progress"]["percent"] < before["progress"]["percent"]:
                found.append(f"{before['progress']} to {after['progress']}")
            for earlier, later in zip(before["stages"], after["stages"], strict=True):
                done = [stage["progress"]["done"] if stage["progress"] else 0 for stage in (earlier, later)]
                if (earlier["status"] in DONE and later["status"] not in DONE) or (self.percent and done[1] < done[0]):
                    found.append(f"{earlier} to {later}")
        return found


def kill_everything(worker) -> None:
    parent = psutil.Process(worker.pid)
    for process in [*parent.children(recursive=True), parent]:
        process.send_signal(signal.SIGSTOP)
    for process in [*parent.children(recursive=True), parent]:
        process.kill()
    worker.wait(30)


def holding(site, name="go-on", count=1):
    wait_until(lambda: len(list(site.folder.glob(f"{name}.reached.*"))) >= count, WAIT_S, what=f"{name} is reached")


@pytest.mark.parametrize("fault", ["worker killed", "Redis restarted", "Redis emptied"])
def test_cases_34_and_36_a_job_outlives_a_fault_and_its_status_only_moves_forward(site, fault):
    worker = site.start_worker()
    go_on = site.folder / "go-on"
    with api(site) as http:
        job_id = site.submit(metadata={"train": f"hold {go_on}"})
        with Watcher(http, job_id, percent=fault != "Redis emptied") as watcher:
            holding(site)
            wait_until(lambda: watcher.seen and watcher.seen[-1]["stages"][4]["progress"], what="progress is shown")
            if fault == "worker killed":
                kill_everything(worker)
                site.start_worker()
                holding(site, count=2)
            elif fault == "Redis restarted":
                site.restart_redis()
            else:
                site.jobs.redis.flushall()
            polls = len(watcher.seen)
            wait_until(lambda: len(watcher.seen) > polls + 5, what="it is polled on")
            go_on.touch()
            record = site.wait_for(job_id, JobStatus.SUCCEEDED)
            wait_until(lambda: watcher.seen[-1]["status"] == "succeeded", what="the end is seen")
        assert http.get("/v1/drafts").json()["data"][0]["id"] == record.draft
    assert watcher.went_back() == []
    assert_whole(site, record)
    lost = fault == "worker killed"
    assert record.attempt == (2 if lost else 1)
    assert [attempt.reason for attempt in record.attempts] == ([StatusReason.WORKER_LOST, None] if lost else [None])
    assert [stage.attempt for stage in record.stages] == [1, 1, 1, 1, 2 if lost else 1, 1, 1]
    assert record.attempts[-1].ended_at is not None
    assert site.processes() == []


def test_a_job_that_is_paused_resumed_cancelled_and_retried_asks_for_no_row_twice(site):
    site.stub.delay_s = 0.1
    site.start_worker(GENERATE)

    def asked() -> int:
        return sum(seen.path == "/v1/chat/completions" for seen in site.stub.answered)

    def ask(action: str, status: int = 200) -> dict:
        answer = http.post(f"/v1/jobs/{job_id}/{action}")
        assert answer.status_code == status, answer.text
        return answer.json()

    with api(site) as http:
        job_id = site.submit(prompts(ROWS), data={"concurrency": 1})
        wait_until(lambda: asked() >= 3, WAIT_S, what="some rows are made")
        assert ask("pause")["status"] == "pausing"
        site.wait_for(job_id, JobStatus.PAUSED)
        assert site.processes() == []
        before = asked()
        assert ask("resume")["status"] == "queued"
        wait_until(lambda: asked() >= before + 2, WAIT_S, what="it goes on")
        assert ask("cancel")["status"] == "cancelling"
        cancelled = site.wait_for(job_id, JobStatus.CANCELLED)
        again = ask("retry", 201)
        record = site.wait_for(again["id"], JobStatus.SUCCEEDED)
        old = http.get(f"/v1/jobs/{job_id}").json()
    assert (old["status"], old["retried_as"], again["retry_of"]) == ("cancelled", again["id"], job_id)
    assert [attempt["reason"] for attempt in old["attempts"]] == ["stopped_by_user"] * 2
    assert record.stage(Stage.PREPARE).status == StageStatus.REUSED
    assert record.stage(Stage.GENERATE).summary["taken_over"] >= before
    assert asked() <= ROWS + 2  # one under way at each stop may have been answered in vain
    assert site.jobs.get(job_id).finished_at == cancelled.finished_at
    assert_whole(site, record)


def test_case_35_a_running_job_that_is_cancelled_twice_is_gone_for_good(site):
    site.start_worker()
    go_on = site.folder / "go-on"
    with api(site) as http:
        job_id = site.submit(metadata={"publish": f"family {go_on}", "train": f"family {go_on}"})
        holding(site)
        for _ in range(2):
            assert http.post(f"/v1/jobs/{job_id}/cancel").json()["status"] in ("cancelling", "cancelled")
        record = site.wait_for(job_id, JobStatus.CANCELLED)
        assert site.processes() == []  # to end them took longer than the run's lease, which was renewed meanwhile
        go_on.touch()
        assert http.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelled"
        other = site.wait_for(site.submit(prompts(3)), JobStatus.SUCCEEDED)
        assert http.post(f"/v1/jobs/{other.id}/cancel").status_code == 409
        assert [draft["job_id"] for draft in http.get("/v1/drafts").json()["data"]] == [other.id]
    assert site.jobs.get(job_id) == record


def test_a_stage_that_is_killed_alone_is_tried_once_more(site):
    site.start_worker()
    job_id = site.submit(metadata={"train": f"hold {site.folder / 'go-on'}"})
    for count in (1, 2):
        holding(site, count=count)
        stage = wait_until(lambda: [p for p in site.processes() if "services.worker.stage_main" in p.cmdline()])
        os.kill(stage[-1].pid, signal.SIGKILL)
        wait_until(lambda n=count: site.jobs.get(job_id).attempts[n - 1].ended_at, WAIT_S, what="it is noticed")
    record = site.wait_for(job_id, JobStatus.FAILED)
    assert record.status_reason == StatusReason.OOM_HOST
    assert [attempt.reason for attempt in record.attempts] == [StatusReason.OOM_HOST] * 2
    assert record.retries == {StatusReason.OOM_HOST: 1}


def test_case_37_no_default_of_rq_ends_a_job_or_forgets_it_and_messages_that_came_twice_run_once(site):
    go_on = site.folder / "go-on"
    job_id = site.submit(metadata={"generate": f"hold {go_on}"})
    for attempt in (1, 1, 2, 0):
        site.queue.enqueue(job_id, attempt)
    for _ in range(2):
        site.start_worker()
    holding(site)
    wait_until(lambda: site.queue.waiting() == 0, WAIT_S, what="all messages are taken")
    message = Job.fetch(f"{job_id}-1", connection=site.queue.redis, serializer=JSONSerializer)
    assert (message.timeout, message.ttl) == (-1, None)
    go_on.touch()
    record = site.wait_for(job_id, JobStatus.SUCCEEDED)
    assert (record.attempt, len(record.attempts), len(list(site.folder.glob("go-on.reached.*")))) == (1, 1, 1)
    for key in site.queue.redis.scan_iter("rq:*"):
        site.queue.redis.delete(key)
    assert site.jobs.get(job_id) == record
