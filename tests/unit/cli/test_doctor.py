"""`eyrie doctor`: what hangs or crashes is a finding, and what is found is judged."""

import importlib.metadata
import threading
from pathlib import Path

import psutil
import pytest

from services.cli.doctor import accelerators, child, machine
from services.cli.doctor.checks import Finding, run_checks
from services.cli.doctor.child import ProbeFailed, ask
from services.cli.doctor.servers import _judge_redis
from shared.settings import Settings
from tests.support.wait import wait_until

REDIS = {
    "url": "redis://r",
    "version": "7.4.1",
    "aof": True,
    "appendfsync": "always",
    "maxmemory_policy": "noeviction",
    "role": "master",
    "latency_ms": 0.1,
}


@pytest.fixture
def test_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "PROBES", "tests.support.doctor_probes")


def test_a_check_that_hangs_is_a_problem_and_holds_up_none() -> None:
    never = threading.Event()
    checks = {
        "hangs": lambda: Finding("ok", str(never.wait(60))),
        "fine": lambda: Finding("ok", "fine"),
        "fails": lambda: Finding("ok", str(1 / 0)),
    }
    found = run_checks(checks, 0.5)
    never.set()
    assert list(found) == ["hangs", "fine", "fails"]
    assert [finding.status for finding in found.values()] == ["problem", "ok", "problem"]
    assert "no answer within 0.5 s" in found["hangs"].summary
    assert "ZeroDivisionError" in found["fails"].summary


def test_a_probe_that_crashes_says_its_last_words(test_probes: None) -> None:
    with pytest.raises(ProbeFailed, match=r"ended with code 1: libcuda\.so\.1 is of another version"):
        ask("crashes", 30)


def test_a_probe_that_hangs_is_ended_with_its_children(
    test_probes: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCTOR_TEST", str(tmp_path))
    with pytest.raises(ProbeFailed, match="did not answer within 2 s"):
        ask("hangs", 2)
    wait_until(lambda: not marked_processes("DOCTOR_TEST", str(tmp_path)), 10, what="the probe's child is gone")


def marked_processes(name: str, value: str) -> list[psutil.Process]:
    found = psutil.process_iter(["environ", "status"])
    return [
        process
        for process in found
        if (process.info["environ"] or {}).get(name) == value and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize(
    ("changes", "summary", "hint"),
    [
        ({"version": "6.0.16"}, "too old", "6.2"),
        ({"aof": False}, "forgets", "appendonly yes"),
        ({"appendfsync": "everysec"}, "last second", "appendfsync always"),
        ({"maxmemory_policy": "allkeys-lru"}, "throw jobs away", "noeviction"),
        ({"role": "slave"}, "cannot be written", "master"),
    ],
)
def test_a_redis_that_may_lose_jobs_is_a_problem(changes: dict[str, object], summary: str, hint: str) -> None:
    finding = _judge_redis({**REDIS, **changes})
    assert finding.status == "problem"
    assert summary in finding.summary
    assert hint in finding.hint


def test_a_redis_that_keeps_everything_is_fine() -> None:
    assert _judge_redis(REDIS).status == "ok"
    assert _judge_redis({**REDIS, "appendfsync": None}).status == "warning", "a hosted one does not let us ask"


def test_what_was_named_must_be_there(tmp_path: Path) -> None:
    assert machine.check_store(Settings(store_root=tmp_path)).status in ("ok", "warning")
    missing = machine.check_store(Settings(store_root=tmp_path / "absent"))
    assert (missing.status, "EYRIE_STORE_ROOT" in missing.hint) == ("problem", True)
    full = machine.check_store(Settings(store_root=tmp_path, store_min_free_bytes=1 << 62))
    assert (full.status, "eyrie gc" in full.hint) == ("problem", True)


def test_packages_of_other_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.check_versions().status == "ok"
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.1.0+cu121" if name == "torch" else real(name))
    finding = machine.check_versions()
    assert finding.status == "problem"
    assert "torch 2.1.0+cu121 is not ==2.13.0" in finding.summary


GPU = {"id": "GPU-1", "name": "NVIDIA H200", "memory_bytes": 140 * 1024**3}


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ({"absent": "there is no NVIDIA driver"}, "info", "no NVIDIA driver"),
        ({"error": "Driver/library version mismatch"}, "problem", "mismatch"),
        ({"driver": "580.1", "cuda": 13.0, "gpus": [GPU, GPU]}, "ok", "2 × NVIDIA H200 (140 GiB), driver 580.1"),
    ],
)
def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch, answer: dict, status: str, words: str) -> None:
    monkeypatch.setattr(accelerators, "ask", lambda _probe, _timeout_s: answer)
    finding = accelerators.check_gpus(1)
    assert finding.status == status
    assert words in finding.summary


def test_a_use_without_an_attention_backend_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = {"verifier": {"chosen": None, "offered": []}, "draft": {"chosen": "FLASH_ATTN", "offered": ["FLASH_ATTN"]}}
    monkeypatch.setattr(accelerators, "ask", lambda _probe, _timeout_s: {"platform": "cuda", "uses": uses})
    finding = accelerators.check_vllm_attention(1)
    assert finding.status == "problem"
    assert "the verifier cannot be served here" in finding.summary


@pytest.mark.slow
def test_the_installed_libraries_are_asked() -> None:
    transformers = accelerators.check_transformers_attention(300)
    assert transformers.status == "ok", transformers
    assert {"eager", "sdpa"} <= set(transformers.details["implementations"])
    vllm = accelerators.check_vllm_attention(300)
    assert vllm.status == "ok", vllm
    if vllm.details["platform"] == "cpu":
        assert "CPU_MLA" in vllm.details["uses"]["verifier"]["offered"], "what the launcher asks for"
