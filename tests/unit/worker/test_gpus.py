"""Which GPUs a worker has, and the locks of a host."""

import os

import pytest

from services.worker import nvml
from services.worker.gpu_locks import GpuLocks, close_all
from services.worker.gpus import LocalGpus, local_gpus, require_job_gpus
from shared.errors import CapacityError, InternalError
from shared.schemas.fleet import GpuInfo
from tests.support.stage_runs import job_spec

REAL = [GpuInfo(id=f"GPU-{name}", name="H200", memory_bytes=1) for name in "abc"]


@pytest.fixture
def driver(monkeypatch):
    """NVML that finds three GPUs, or as many as the test leaves."""
    found = list(REAL)
    monkeypatch.setattr(nvml, "list_gpus", lambda: found)
    monkeypatch.setattr(nvml, "find_gpu", lambda uuid: next((gpu for gpu in found if gpu.id == uuid), None))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


def ids(setting):
    return [gpu.id for gpu in local_gpus(setting)]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", ["GPU-a", "GPU-b", "GPU-c"]),
        ("2, 0", ["GPU-c", "GPU-a"]),
        ("GPU-b,1", ["GPU-b"]),
        ("fake-0,fake-1", ["fake-0", "fake-1"]),
    ],
)
def test_indices_become_uuids_and_other_names_are_faked(driver, setting, expected):
    assert ids(setting) == expected


@pytest.mark.parametrize("setting", ["3", "GPU-x", "0,GPU-x"])
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(driver, setting):
    with pytest.raises(CapacityError, match=r"NVML finds 0 \(GPU-a\), 1 \(GPU-b\)"):
        ids(setting)


def test_without_a_driver_indices_are_faked_and_uuids_refused(driver):
    driver.clear()
    assert (ids(""), ids("0,1")) == ([], ["0", "1"])
    with pytest.raises(CapacityError, match="NVML finds none"):
        ids("GPU-a")


@pytest.mark.parametrize(("visible", "expected"), [("1", ["GPU-b"]), ("GPU-c", ["GPU-c"]), ("", []), ("-1", [])])
def test_what_cuda_may_see_limits_discovery(driver, monkeypatch, visible, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert ids("") == expected


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"train": {"gpus": 8}}, "/train/gpus"),
        ({"evaluate": {"gpus": 8}}, "/evaluate/gpus"),
        ({"verifier": {"managed": {"tensor_parallel_size": 8}}}, "/verifier/managed/tensor_parallel_size"),
    ],
)
def test_a_job_that_asks_for_more_than_exists_is_told_both_numbers_and_where(tmp_path, changes, where):
    local = LocalGpus("fake-0,fake-1", GpuLocks(tmp_path / "locks", tmp_path))
    with pytest.raises(CapacityError, match="8 GPUs are asked for and this worker has 2") as refused:
        require_job_gpus(local, job_spec(tmp_path, **changes))
    assert refused.value.where == where


def test_locks_are_taken_all_or_none(tmp_path):
    locks = GpuLocks(tmp_path / "locks", tmp_path)
    held = locks.take(["fake-1"])
    assert locks.take(["fake-0", "fake-1"]) is None
    assert (locks.is_free("fake-0"), locks.is_free("fake-1")) == (True, False)
    close_all(held)
    assert locks.is_free("fake-1")


def test_a_real_gpu_is_locked_for_all_sites_of_a_host_and_a_faked_one_for_its_own(tmp_path):
    one, other = GpuLocks(tmp_path / "locks", tmp_path / "a"), GpuLocks(tmp_path / "locks", tmp_path / "b")
    held = one.take(["GPU-a", "fake-0"])
    assert (other.is_free("GPU-a"), other.is_free("fake-0")) == (False, True)
    close_all(held)


def test_a_lock_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InternalError, match="EYRIE_GPU_LOCK_FOLDER"):
        GpuLocks(tmp_path / "file", tmp_path).is_free("fake-0")
    folder = tmp_path / "locks"
    folder.mkdir()
    os.symlink(tmp_path / "file", folder / "GPU-a.lock")
    with pytest.raises(InternalError, match="GPU-a"):
        GpuLocks(folder, tmp_path).take(["GPU-a"])
