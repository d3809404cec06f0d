"""Workers and stages that are killed or freeze, with children that ignore SIGTERM, in sessions of their own.

A faked GPU is given on only when all of them are gone, and none is left in the end: the stage of the next job looks
itself whether it is alone on the GPU.
"""

import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from services.worker.supervision import GUARD, is_alive
from shared.fleet import Fleet
from shared.schemas.fleet import GpuStatus
from shared.schemas.job import JobStatus, Stage
from tests.support.wait import wait_until
from tests.support.worker_site import Site

GPU = "fake-0"
WAIT_S = 180
ROWS = [{"prompt": "the same for all, so that all but training is computed once"}]


@dataclass
class Run:
    """A job that holds in its train stage until `go_on` exists."""

    site: Site
    job_id: str
    go_on: Path

    @classmethod
    def submit(cls, site, verb):
        name = f"job-{len(site.jobs.list_ids())}"
        train = {"gpus": 1, "seed": len(site.jobs.list_ids())}
        metadata = {"train": f"{verb} {site.folder / name}"}
        return cls(site, site.submit(ROWS, metadata=metadata, train=train), site.folder / name)

    def is_reached(self):
        return any(self.go_on.parent.glob(f"{self.go_on.name}.reached.*"))

    def wait_reached(self):
        wait_until(self.is_reached, WAIT_S, what=f"{self.go_on.name} is reached")

    def wait_in_line(self):
        events = self.site.jobs.events
        wait_until(lambda: any(e["type"] == "waiting" for _, e in events(self.job_id)), WAIT_S, what="it waits")

    def finish(self):
        self.go_on.touch()
        return self.site.wait_for(self.job_id, JobStatus.SUCCEEDED)

    def tree(self):
        """The processes that run it, by role, and all below the work horse."""
        pid = next(worker.pid for worker in Fleet(self.site.jobs.redis).workers() if worker.job_id == self.job_id)
        horse = psutil.Process(pid).children()[0]
        guard = horse.children()[0]
        assert GUARD in guard.cmdline()
        stage = next(child for child in guard.children() if "services.worker.stage_main" in child.cmdline())
        below = horse.children(recursive=True)
        assert len(below) == 4, "guard, stage, and two stubborn children"
        return {"worker": psutil.Process(pid), "horse": horse, "guard": guard, "stage": stage}, below


def send(roles, names, number):
    for name in names:
        with contextlib.suppress(psutil.NoSuchProcess):
            roles[name].send_signal(number)


def gpu(site):
    return next(gpu for gpu in Fleet(site.jobs.redis).gpus() if gpu.id == GPU)


def alive(processes):
    return [process.pid for process in processes if is_alive(process)]


def start_workers(site, count):
    """See to it that there are so many live workers with one GPU between them."""
    for worker in site.workers:
        worker.poll()
    for _ in range(count - sum(worker.returncode is None for worker in site.workers)):
        site.start_worker(gpus=GPU, EYRIE_STOP_GRACE_S="1")


def start_pair(site):
    """One job on the GPU, and another that waits for it on another worker."""
    start_workers(site, 2)
    first = Run.submit(site, "family")
    first.wait_reached()
    second = Run.submit(site, "alone")
    second.wait_in_line()
    return first, second


@pytest.mark.parametrize(
    ("killed", "redis_restarts"),
    [
        (("worker",), False),
        (("worker", "horse"), False),
        (("stage",), False),
        pytest.param(("guard", "stage"), False, marks=pytest.mark.slow),
        pytest.param(("horse", "guard"), False, marks=pytest.mark.slow),
        (("worker", "horse", "guard", "stage"), True),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_a_gpu_is_given_on_only_when_what_was_killed_has_left_it(shared_site, killed, redis_restarts):
    first, second = start_pair(shared_site)
    roles, processes = first.tree()
    send(roles, killed, signal.SIGKILL)
    if redis_restarts:
        shared_site.restart_redis()
    second.wait_reached()  # its stage fails unless it is alone on the GPU
    assert alive(processes) == []
    first.go_on.touch()
    second.finish()
    if killed == ("worker",):
        shared_site.wait_for(first.job_id, JobStatus.SUCCEEDED)  # its work horse handed it over


def test_a_run_that_thaws_after_its_lease_kills_its_children_and_changes_nothing(shared_site):
    first, second = start_pair(shared_site)
    roles, processes = first.tree()
    send(roles, roles, signal.SIGSTOP)
    shared_site.replace_lost_attempt(first.job_id)
    second.wait_reached()  # the frozen run's children were ended for it
    assert alive(processes) == []
    before = shared_site.jobs.get(first.job_id)
    send(roles, ["horse", "worker"], signal.SIGCONT)
    wait_until(lambda: alive([roles["horse"]]) == [], WAIT_S, what="the thawed run ends")
    assert shared_site.jobs.get(first.job_id) == before
    second.finish()
    assert first.finish().stage(Stage.TRAIN).attempt == 2


def test_what_a_killed_worker_left_is_ended_although_no_worker_ever_comes_back(shared_site):
    start_workers(shared_site, 1)
    for worker in shared_site.workers[:-1]:
        worker.terminate()
    for worker in shared_site.workers[:-1]:
        worker.wait(30)
    run = Run.submit(shared_site, "family")
    run.wait_reached()
    roles, processes = run.tree()
    send(roles, ["worker", "horse"], signal.SIGKILL)
    wait_until(lambda: alive(processes) == [], WAIT_S, what="nothing is left")
    run.go_on.touch()


def test_a_killed_workers_gpu_is_quarantined_until_a_worker_has_found_it_empty(shared_site):
    start_workers(shared_site, 1)
    run = Run.submit(shared_site, "family")
    run.wait_reached()
    roles, processes = run.tree()
    assert gpu(shared_site).status == GpuStatus.LEASED
    send(roles, roles, signal.SIGKILL)
    wait_until(lambda: gpu(shared_site).status == GpuStatus.QUARANTINED, WAIT_S, what="the lease expires")
    assert len(alive(processes)) == 2, "its stubborn children live on"
    start_workers(shared_site, 1)  # it has no job; a worker that starts ends what dead runs left
    wait_until(lambda: gpu(shared_site).status == GpuStatus.FREE, WAIT_S, what="the quarantine ends")
    assert alive(processes) == []


def test_a_job_that_asks_for_more_gpus_than_exist_is_refused_with_both_numbers(site):
    site.start_worker(gpus="fake-0,fake-1")
    record = site.wait_for(site.submit(train={"gpus": 3}), JobStatus.FAILED)
    assert record.status_reason == "capacity"
    assert record.error.message == "3 GPUs are asked for and this worker has 2"
    assert record.error.where == "/train/gpus"


def test_a_managed_verifier_has_all_its_gpus_while_it_serves_and_training_has_them_after_it(site):
    gpus = "fake-0,fake-1"
    worker = site.start_worker(gpus=gpus, EYRIE_STOP_GRACE_S="1", EYRIE_VERIFIER_MODULE="tests.support.light_verifier")
    go_on = site.folder / "go-on"
    verifier = {"endpoint": None, "managed": {"tensor_parallel_size": 2}}
    job = {"verifier": verifier, "train": {"gpus": 2}, "metadata": {"generate": f"hold {go_on}"}}
    job_id = site.submit(ROWS, **job)
    wait_until(lambda: list(site.folder.glob("go-on.reached.*")), WAIT_S, what="the verifier serves")
    states = Fleet(site.jobs.redis).gpus()
    assert [(state.status, state.holder.stage) for state in states] == [(GpuStatus.LEASED, "verifier")] * 2
    horse = psutil.Process(worker.pid).children()[0]
    processes = horse.children(recursive=True)
    assert len(processes) == 5, "two guards, the stage, the verifier, and its engine"
    for process in (worker, horse):
        process.kill()
    site.replace_lost_attempt(job_id)
    site.start_worker(gpus=gpus, EYRIE_STOP_GRACE_S="1", EYRIE_VERIFIER_MODULE="tests.support.light_verifier")
    wait_until(lambda: len(list(site.folder.glob("go-on.reached.*"))) == 2, WAIT_S, what="another run has both GPUs")
    assert alive(processes) == []
    go_on.touch()
    assert site.wait_for(job_id, JobStatus.SUCCEEDED).attempt == 2
    assert {state.status for state in Fleet(site.jobs.redis).gpus()} == {GpuStatus.FREE}
    assert site.processes() == []


def test_replicas_on_one_host_never_share_a_gpu(site):
    for _ in range(3):
        site.start_worker(gpus="fake-0,fake-1")
    runs = [Run.submit(site, "alone") for _ in range(3)]
    wait_until(lambda: sum(run.is_reached() for run in runs) == 2, WAIT_S, what="two of three have a GPU")
    states = [gpu for gpu in Fleet(site.jobs.redis).gpus() if gpu.status == GpuStatus.LEASED]
    assert {state.holder.job_id for state in states} == {run.job_id for run in runs if run.is_reached()}
    assert len(states) == 2
    for run in runs:
        run.go_on.touch()
    for run in runs:
        run.finish()
    assert all(gpu.status == GpuStatus.FREE for gpu in Fleet(site.jobs.redis).gpus())


def test_workers_register_with_their_gpus_and_job_and_sign_off(site):
    worker = site.start_worker(gpus=GPU)
    fleet = Fleet(site.jobs.redis)
    (record,) = wait_until(fleet.workers, WAIT_S, what="it registers")
    assert (record.pid, [gpu.id for gpu in record.gpus], record.job_id) == (worker.pid, [GPU], None)
    run = Run.submit(site, "hold")
    run.wait_reached()
    assert fleet.workers()[0].job_id == run.job_id
    run.finish()
    worker.send_signal(signal.SIGTERM)
    worker.wait(20)
    assert fleet.workers() == []


def test_a_gpu_that_is_not_there_stops_the_worker_with_a_sentence(site):
    worker = site.start_worker(gpus="GPU-00000000-0000-0000-0000-000000000000")
    assert worker.wait(30) == 2
    log = (site.folder / "workers.log").read_text()
    assert "there is no GPU GPU-00000000" in log
    assert "Traceback" not in log
