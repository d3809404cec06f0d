"""The local stack: ports in use are named, and only what it started is ended."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tools import local_stack
from tools.local_stack import Stack, load, main, stop
from tools.stack_services import Service, StackError, usable_port


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def stack_of(folder: Path, pid: int, created: float) -> Stack:
    stack = Stack(str(folder), "http://127.0.0.1:1", "", "")
    stack.services.append(Service("worker", pid, created, str(folder / "worker.log")))
    stack.save()
    return stack


def test_a_port_in_use_is_named_with_the_way_to_choose_another() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=rf"gateway's port {port} is in use.*EYRIE_GATEWAY_PORT"):
            usable_port("gateway", port, "EYRIE_GATEWAY_PORT")


def test_stopping_ends_what_the_stack_started(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    stop(stack_of(tmp_path, sleeper.pid, psutil.Process(sleeper.pid).create_time()))
    assert not psutil.pid_exists(sleeper.pid)
    assert load(tmp_path) is None


def test_a_later_process_with_the_same_pid_is_left_alone(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    stop(stack_of(tmp_path, sleeper.pid, psutil.Process(sleeper.pid).create_time() - 60))
    assert sleeper.poll() is None


def test_down_without_up_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--folder", str(tmp_path)]) == 0
    assert "Nothing runs" in capsys.readouterr().out


def test_a_redis_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:secret@127.0.0.1:1/0")
    monkeypatch.setenv("EYRIE_GATEWAY_PORT", str(usable_port("gateway", None)))
    monkeypatch.setenv("EYRIE_VERIFIER_PORT", str(usable_port("verifier", None)))
    assert main(["up", "--folder", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "127.0.0.1:1" in said
    assert "secret" not in said
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("url", ["nonsense", "http://x", "redis://127.0.0.1:abc/0"])
def test_a_redis_url_that_is_none_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    monkeypatch.setenv("EYRIE_GATEWAY_PORT", str(usable_port("gateway", None)))
    monkeypatch.setenv("EYRIE_VERIFIER_PORT", str(usable_port("verifier", None)))
    assert main(["up", "--folder", str(tmp_path)]) == 2
    assert f"REDIS_URL names {url}" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["abc", "-1", "99999"])
def test_a_port_that_is_none_is_named(
    port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EYRIE_GATEWAY_PORT", port)
    assert main(["up", "--folder", str(tmp_path)]) == 2
    assert "EYRIE_GATEWAY_PORT" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_damaged_record_of_what_runs_is_named(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stack.json").write_text(content)
    assert main(["down", "--folder", str(tmp_path)]) == 2
    assert str(tmp_path / "stack.json") in capsys.readouterr().err


def test_up_says_which_of_the_running_services_has_ended(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str]
) -> None:
    stack = stack_of(tmp_path, sleeper.pid, psutil.Process(sleeper.pid).create_time())
    log = tmp_path / "gateway.log"
    log.write_text("started\nno memory\n")
    stack.services.append(Service("gateway", sleeper.pid, 1.0, str(log)))
    stack.save()
    assert main(["up", "--folder", str(tmp_path)]) == 2
    assert "gateway ended: no memory" in capsys.readouterr().err


def test_a_second_interrupt_does_not_leave_services_running(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = stack_of(tmp_path, sleeper.pid, psutil.Process(sleeper.pid).create_time())
    end = local_stack.end_service

    def interrupted(service: Service) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        end(service)

    monkeypatch.setattr(local_stack, "end_service", interrupted)
    stop(stack)
    assert not psutil.pid_exists(sleeper.pid)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_stopping_ends_what_a_killed_service_left_running(tmp_path: Path) -> None:
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    with leader:
        assert leader.stdout is not None
        child = psutil.Process(int(leader.stdout.readline()))
        stack = stack_of(tmp_path, leader.pid, psutil.Process(leader.pid).create_time())
        leader.kill()
    stop(stack)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
