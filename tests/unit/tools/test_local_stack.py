"""The local stack: ports in use are named, and only what it started is ended."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tools.local_stack import Service, Stack, StackError, load, main, stop, usable_port


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
