"""One load of a managed verifier for the data of all jobs in line that want it, whatever happens meanwhile."""

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.gateway.job_view import job_view
from shared import attempts
from shared.fleet import Fleet
from shared.schemas.fleet import GpuStatus
from shared.schemas.job import JobRecord, JobStatus, Progress, Stage, StageStatus, UserAction, now
from tests.support.stage_runs import prompts
from tests.support.wait import wait_until
from tests.support.worker_site import Site

GPUS = "fake-0,fake-1"
MANAGED = {"tensor_parallel_size": 2}
VERIFIER = "tests.support.light_verifier"


def start_worker(site: Site, **changes: str) -> Any:
    return site.start_worker(gpus=GPUS, EYRIE_STOP_GRACE_S="1", EYRIE_VERIFIER_MODULE=VERIFIER, **changes)


def submit(site: Site, rows: int, hold: str = "", **managed: Any) -> str:
    """A job for both GPUs, with data of its own; `hold` names the file that its generate stage waits for."""
    verifier = {"endpoint": None, "managed": MANAGED | managed}
    metadata = {"generate": f"hold {site.folder / hold}"} if hold else {}
    return site.submit(prompts(rows), verifier=verifier, train={"gpus": 2}, metadata=metadata)


def wait_reached(site: Site, hold: str, times: int = 1) -> None:
    wait_until(lambda: len(list(site.folder.glob(f"{hold}.reached.*"))) == times, 90, what=f"a stage is at {hold}")


def loads(site: Site, job_id: str) -> int:
    """How often a verifier was started for a job."""
    return len(list(site.store.root.glob(f"jobs/{job_id}/logs/verifier-*.log")))


def reasons(record: JobRecord) -> list[str | None]:
    return [attempt.reason for attempt in record.attempts]


def gpu_states(site: Site) -> set[GpuStatus]:
    """What the GPUs are, all of them."""
    return {state.status for state in Fleet(site.jobs.redis).gpus()}


def activity(site: Site, job_id: str) -> str | None:
    """What the generate stage says that it is doing."""
    progress = site.jobs.get(job_id).stage(Stage.GENERATE).progress
    return progress.activity if progress else None


def in_line(site: Site, first: str) -> tuple[str, str]:
    """A job whose generate stage has begun, and one in line that holds at `first`."""
    host = submit(site, 10, "host")
    wait_reached(site, "host")
    guest = submit(site, 12, first)
    (site.folder / "host").touch()
    wait_reached(site, first)
    return host, guest


def test_jobs_in_line_that_want_the_verifier_share_a_load_and_others_have_their_own(site: Site) -> None:
    start_worker(site)
    host = submit(site, 10, "host")
    wait_reached(site, "host")
    guest, other = submit(site, 12), submit(site, 14, max_model_len=2048)
    unwilling = submit(site, 16, keep_warm=False)
    (site.folder / "host").touch()
    records = {job_id: site.wait_for(job_id, JobStatus.SUCCEEDED) for job_id in (host, guest, other, unwilling)}
    assert [loads(site, job_id) for job_id in records] == [1, 0, 1, 1]
    assert [reasons(record) for record in records.values()] == [[None], ["handed_over", None], [None], [None]]
    assert records[guest].attempts[0].message == "its data is made; it waits for its turn to train"
    assert {stage.status for stage in records[guest].stages} == {StageStatus.SUCCEEDED}
    made = records[guest].stage(Stage.CAPTURE).finished_at
    assert made is not None
    assert made < records[host].stage(Stage.TRAIN).started_at, "the verifier went before the first training"
    starts = [
        records[host].finished_at,
        records[guest].stage(Stage.TRAIN).started_at,
        records[other].stages[0].started_at,
    ]
    assert starts == sorted(starts), "the guest trains next, before the jobs that came after it"
    assert [guest in str(event) for event in site.jobs.event_log.read(host)].count(True) == 1
    seconds = Fleet(site.jobs.redis).load_seconds(str(site.verifier))
    assert seconds is not None
    assert 0 < seconds < 90
    assert gpu_states(site) == {GpuStatus.FREE}
    assert site.processes() == []


@pytest.mark.parametrize("asked", [JobStatus.CANCELLING, pytest.param(JobStatus.PAUSING, marks=pytest.mark.slow)])
def test_a_guest_that_is_stopped_leaves_its_host_alone(site: Site, asked: JobStatus) -> None:
    start_worker(site)
    host, guest = in_line(site, "guest")
    assert site.jobs.get(guest).status == JobStatus.RUNNING
    site.stop_job(guest, asked)
    stopped = {JobStatus.CANCELLING: JobStatus.CANCELLED, JobStatus.PAUSING: JobStatus.PAUSED}[asked]
    site.wait_for(guest, stopped)
    assert site.wait_for(host, JobStatus.SUCCEEDED).attempt == 1
    assert site.half_made() == []


def test_a_guest_that_fails_leaves_its_host_alone(site: Site) -> None:
    start_worker(site)
    host = submit(site, 10, "host")
    wait_reached(site, "host")
    verifier = {"endpoint": None, "managed": MANAGED}
    guest = site.submit(prompts(12), verifier=verifier, train={"gpus": 2}, metadata={"generate": "refuse"})
    (site.folder / "host").touch()
    assert site.wait_for(guest, JobStatus.FAILED).status_reason == "user_error"
    assert site.wait_for(host, JobStatus.SUCCEEDED).attempt == 1
    assert loads(site, guest) == 0


def test_a_guest_goes_on_by_itself_when_its_host_is_cancelled(site: Site) -> None:
    start_worker(site)
    host, guest = in_line(site, "guest")
    later = submit(site, 14, keep_warm=False)
    site.stop_job(host, JobStatus.CANCELLING)
    site.wait_for(host, JobStatus.CANCELLED)
    wait_reached(site, "guest", 2)
    (site.folder / "guest").touch()
    record = site.wait_for(guest, JobStatus.SUCCEEDED)
    assert reasons(record) == ["handed_over", None]
    assert record.attempts[0].message == "the run that had its verifier loaded was stopped; it waits for its turn"
    assert loads(site, guest) == 1
    assert site.wait_for(later, JobStatus.SUCCEEDED).stages[0].started_at > record.stage(Stage.TRAIN).started_at


def test_host_and_guest_survive_their_worker(site: Site) -> None:
    worker = start_worker(site)
    host, guest = in_line(site, "guest")
    for process in (*psutil.Process(worker.pid).children(), worker):
        process.kill()
    for job_id in (host, guest):
        site.replace_lost_attempt(job_id)
    (site.folder / "guest").touch()
    start_worker(site)
    for job_id in (host, guest):
        assert reasons(site.wait_for(job_id, JobStatus.SUCCEEDED)) == ["worker_lost", None]
    assert loads(site, host) == 1
    assert loads(site, guest) == 1, "its turn came when the host's data was there"
    assert site.processes() == []


@pytest.mark.slow
def test_a_guest_whose_worker_is_told_to_stop_is_handed_over_with_its_host(site: Site) -> None:
    worker = start_worker(site)
    host, guest = in_line(site, "guest")
    worker.terminate()
    worker.wait(60)
    assert [site.jobs.get(job_id).status for job_id in (host, guest)] == [JobStatus.RUNNING] * 2
    (site.folder / Path("guest")).touch()
    start_worker(site)
    for job_id in (host, guest):
        assert reasons(site.wait_for(job_id, JobStatus.SUCCEEDED))[0] == "handed_over"


@pytest.mark.slow
def test_guests_go_back_into_line_in_their_order(site: Site) -> None:
    start_worker(site)
    host = submit(site, 10, "host")
    wait_reached(site, "host")
    jobs = [host, *(submit(site, rows) for rows in (12, 14, 16))]
    (site.folder / "host").touch()
    starts = [site.wait_for(job_id, JobStatus.SUCCEEDED).stage(Stage.TRAIN).started_at for job_id in jobs]
    assert starts == sorted(starts)
    assert [loads(site, job_id) for job_id in jobs] == [1, 0, 0, 0]


def test_a_host_lives_while_its_verifier_does_not_answer(site: Site) -> None:
    start_worker(site)
    host = submit(site, 10, "host")
    wait_reached(site, "host")
    guest = submit(site, 12)
    servers = [process for process in site.processes() if process.cmdline()[1:3] == ["-m", VERIFIER]]
    assert len(servers) == 1
    servers[0].suspend()
    (site.folder / "host").touch()
    wait_until(lambda: site.jobs.get(host).stage(Stage.CAPTURE).finished_at, 60, what="the host's data is made")
    end = time.monotonic() + 5
    while time.monotonic() < end:
        assert site.jobs.run_token(host) is not None
        time.sleep(0.1)
    servers[0].resume()
    for job_id in (host, guest):
        site.wait_for(job_id, JobStatus.SUCCEEDED)
    assert loads(site, guest) == 0


def test_no_guest_gets_what_was_loaded_from_files_that_were_replaced(site: Site) -> None:
    start_worker(site)
    verifier = {"endpoint": None, "managed": MANAGED}
    hold = {"capture": f"hold {site.folder / 'host'}"}
    host = site.submit(prompts(10), verifier=verifier, train={"gpus": 2}, metadata=hold)
    wait_reached(site, "host")
    guest = submit(site, 12)
    (site.verifier / "generation_config.json").write_text('{"eos_token_id": 3}')
    (site.folder / "host").touch()
    assert site.wait_for(host, JobStatus.FAILED).status_reason == "user_error"
    assert reasons(site.wait_for(guest, JobStatus.SUCCEEDED)) == [None]
    assert loads(site, guest) == 1


def test_no_guest_waits_for_an_equal_job_that_waits_for_the_hosts_gpus(site: Site) -> None:
    start_worker(site)
    host = submit(site, 10, "host")
    wait_reached(site, "host")
    equal = submit(site, 12)
    start_worker(site)
    wait_until(lambda: "waits for 2 of 2 GPUs" in str(site.jobs.event_log.read(equal)), 60, what="it wants GPUs")
    guest = submit(site, 12)
    (site.folder / "host").touch()
    for job_id in (host, equal, guest):
        site.wait_for(job_id, JobStatus.SUCCEEDED)
    assert [loads(site, job_id) for job_id in (host, equal, guest)] == [1, 1, 0]


def test_no_verifier_is_kept_while_an_equal_job_makes_the_data(site: Site) -> None:
    start_worker(site)
    made = site.wait_for(submit(site, 10), JobStatus.SUCCEEDED)
    for stage in (Stage.GENERATE, Stage.CAPTURE):
        site.store.delete(str(made.stage(stage).manifest))
    lease = f"stage:capture:{made.stage(Stage.CAPTURE).key}"
    assert site.jobs.acquire_keys([lease], "another run", 600)
    job_id = submit(site, 10)
    wait_until(lambda: site.jobs.get(job_id).stage(Stage.GENERATE).finished_at, 60, what="the answers are there")
    wait_until(lambda: gpu_states(site) == {GpuStatus.FREE}, 60, what="the other run can have the GPUs")
    site.jobs.release_keys([lease], "another run")
    site.wait_for(job_id, JobStatus.SUCCEEDED)


@pytest.mark.slow
def test_what_a_stage_had_reached_is_shown_while_its_verifier_loads_again(site: Site) -> None:
    loaded = site.folder / "loaded"
    loaded.touch()
    start_worker(site, EYRIE_LIGHT_VERIFIER_HOLD=str(loaded))
    job_id = submit(site, 10, "hold")
    wait_reached(site, "hold")
    half = Progress(done=1, total=2, unit="steps", fraction=0.5, updated_at=now())
    time.sleep(1)  # what the stage itself has said is shown by now
    assert site.jobs.set_progress(job_id, site.jobs.get(job_id).token or "", half)
    reached = job_view(site.jobs.get(job_id)).progress.percent
    site.stop_job(job_id, JobStatus.PAUSING)
    site.wait_for(job_id, JobStatus.PAUSED)
    loaded.unlink()
    record = site.jobs.update(job_id, lambda record: attempts.decide(record, UserAction.RESUME))
    site.queue.enqueue(job_id, record.attempt)
    wait_until(lambda: activity(site, job_id) == "starting vLLM", 60, what="the verifier loads again")
    assert job_view(site.jobs.get(job_id)).progress.percent == reached
    (site.folder / "hold").touch()
    loaded.touch()
    site.wait_for(job_id, JobStatus.SUCCEEDED)
