"""Leases on the GPUs of this machine: `make test-gpu`. What holds for faked ones in `make test` holds here by NVML."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from services.worker import nvml
from services.worker.supervision import GUARD, is_alive
from shared.fleet import Fleet
from shared.schemas.fleet import GpuState, GpuStatus
from shared.schemas.job import JobStatus
from tests.integration.worker.conftest import open_site
from tests.support.cuda_holder import BYTES
from tests.support.wait import wait_until
from tests.support.worker_site import Site

GPUS = nvml.list_gpus()
HOLDER = Path(__file__).resolve().parents[1] / "support" / "cuda_holder.py"
WAIT_S = 180
ROWS = [{"prompt": "the same for all, so that all but training is computed once"}]

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="NVML finds no GPU here")]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site on GPUs that nobody uses."""
    wait_until(lambda: all(nvml.is_empty(gpu.id) for gpu in GPUS), 30, what="the GPUs are empty")
    with open_site(tmp_path) as made:
        yield made


def start_worker(site: Site) -> "subprocess.Popen[bytes]":
    return site.start_worker(EYRIE_STOP_GRACE_S="1")


def submit(site: Site, name: str, gpus: int = 1) -> tuple[str, Path]:
    """A job whose training has memory on its first GPU, and the file that it waits for."""
    go_on = site.folder / name
    train = {"gpus": gpus, "seed": len(site.jobs.list_ids())}
    return site.submit(ROWS, metadata={"train": f"cuda {go_on}"}, train=train), go_on


def wait_reached(site: Site, go_on: Path, times: int = 1) -> None:
    wait_until(lambda: len(list(site.folder.glob(f"{go_on.name}.reached.*"))) == times, WAIT_S, what=go_on.name)


def states(site: Site) -> dict[str, GpuState]:
    return {gpu.id: gpu for gpu in Fleet(site.jobs.redis).gpus()}


def leased_to(site: Site, job_id: str) -> list[str]:
    leased = [gpu for gpu in states(site).values() if gpu.status == GpuStatus.LEASED]
    return [gpu.id for gpu in leased if gpu.holder is not None and gpu.holder.job_id == job_id]


def used(gpu: str) -> int:
    load = nvml.gpu_load(gpu)
    assert load is not None
    return load[0]


@contextmanager
def stranger(folder: Path, gpu: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has nothing to do with the service, on a GPU."""
    ready = folder / "stranger"
    process = subprocess.Popen([sys.executable, HOLDER, ready], env={"CUDA_VISIBLE_DEVICES": gpu})
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, WAIT_S, what="the stranger has the GPU")
        assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait(30)


def test_a_worker_without_a_setting_has_the_gpus_that_nvml_finds(site: Site) -> None:
    start_worker(site)
    (worker,) = wait_until(Fleet(site.jobs.redis).workers, WAIT_S, what="the worker registers")
    assert [gpu.id for gpu in worker.gpus] == [gpu.id for gpu in GPUS]
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    for gpu in worker.gpus:
        assert gpu.id in listing
        assert gpu.memory_bytes is not None
        assert gpu.memory_bytes > BYTES


def test_a_stage_runs_on_the_gpu_that_it_leased_and_leaves_it_empty(site: Site) -> None:
    start_worker(site)
    job_id, go_on = submit(site, "job")
    wait_reached(site, go_on)
    (leased,) = leased_to(site, job_id)
    assert used(leased) > BYTES
    assert all(nvml.is_empty(gpu.id) for gpu in GPUS if gpu.id != leased)
    go_on.touch()
    site.wait_for(job_id, JobStatus.SUCCEEDED)
    wait_until(lambda: nvml.is_empty(leased), WAIT_S, what="nothing is left on it")
    assert states(site)[leased].status == GpuStatus.FREE


def test_what_a_killed_run_left_on_a_gpu_is_ended_before_the_gpu_is_given_on(site: Site) -> None:
    worker = start_worker(site)
    first, go_on = submit(site, "first", len(GPUS))
    wait_reached(site, go_on)
    horse = psutil.Process(worker.pid).children()[0]
    tree = horse.children(recursive=True)
    holder = next(process for process in tree if str(HOLDER) in process.cmdline())
    assert any(GUARD in process.cmdline() for process in tree)
    for process in (psutil.Process(worker.pid), horse, *(one for one in tree if one != holder)):
        process.kill()
    gpu = next(one.id for one in GPUS if used(one.id) > BYTES)
    wait_until(lambda: states(site)[gpu].status == GpuStatus.QUARANTINED, WAIT_S, what="the lease lapses")
    assert is_alive(holder)
    assert not nvml.is_empty(gpu)
    start_worker(site)
    wait_until(lambda: states(site)[gpu].status == GpuStatus.FREE, WAIT_S, what="the quarantine ends")
    assert not is_alive(holder)
    assert nvml.is_empty(gpu)
    go_on.touch()
    site.replace_lost_attempt(first)
    assert site.wait_for(first, JobStatus.SUCCEEDED).attempt == 2


def test_a_quarantine_lasts_for_as_long_as_nvml_shows_anybody_on_the_gpu(site: Site) -> None:
    worker = start_worker(site)
    job_id, go_on = submit(site, "job", len(GPUS))
    wait_reached(site, go_on)
    gpu = GPUS[0].id
    with stranger(site.folder, gpu):
        horse = psutil.Process(worker.pid).children()[0]
        for process in (psutil.Process(worker.pid), horse, *horse.children(recursive=True)):
            process.kill()
        wait_until(lambda: states(site)[gpu].status == GpuStatus.QUARANTINED, WAIT_S, what="the lease lapses")
        start_worker(site)
        site.replace_lost_attempt(job_id)
        wait_until(lambda: site.jobs.get(job_id).token, WAIT_S, what="another run wants the GPUs")
        events = site.jobs.event_log
        wait_until(
            lambda: "waiting" in [event["type"] for _, event in events.read_all(job_id)], WAIT_S, what="it waits"
        )
        assert states(site)[gpu].status == GpuStatus.QUARANTINED
        assert leased_to(site, job_id) == []
    wait_reached(site, go_on, 2)
    assert sorted(leased_to(site, job_id)) == sorted(one.id for one in GPUS)
    go_on.touch()
    site.wait_for(job_id, JobStatus.SUCCEEDED)
