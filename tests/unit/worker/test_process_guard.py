"""A guarded command leaves nothing behind, whoever of them is killed, and ends as it would have ended alone."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from services.worker.gpu_locks import GpuLocks
from services.worker.supervision import (
    GPUS_VARIABLE,
    STORE_VARIABLE,
    GuardedProcess,
    end_tree,
    gpus_in_use,
    is_alive,
    marked_environment,
    marked_processes,
)
from shared.ids import new_id
from tests.support.wait import wait_until

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
# A child in a session of its own; an orphan in another; and an orphan that has even forgotten its environment.
FAMILY = f"""
import subprocess, sys, time
start = [sys.executable, "-S", "-c"]
child = [*start, {STUBBORN!r}]
subprocess.Popen(child, start_new_session=True)
daemon = "import subprocess; subprocess.Popen(%r, start_new_session=True, env=%r)"
subprocess.run([*start, daemon % (child, None)], check=True)
subprocess.run([*start, daemon % (child, {{}})], check=True)
print("up", flush=True)
time.sleep(300)
"""
OBEDIENT = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", flush=True)
time.sleep(300)
"""


@pytest.fixture
def launch(tmp_path):
    started = []

    def start(code, grace_s=0.3, keep=(), extra=None, options=("-S",)):
        token = new_id("run")
        with (tmp_path / "output").open("wb") as output:
            command = [sys.executable, *options, "-c", code]
            guarded = GuardedProcess.start(
                command, environment=marked_environment(token, extra), output=output, grace_s=grace_s, keep=keep
            )
        started.append(guarded)
        return guarded

    yield start
    for guarded in started:
        end_tree(guarded.mark, None, 0.0)
        guarded.process.wait(10)


@pytest.fixture
def launch_family(launch, tmp_path):
    def start(**options):
        guarded = launch(FAMILY, **options)
        wait_until(lambda: "up" in (tmp_path / "output").read_text(), what="the family is complete")
        tree = psutil.Process(guarded.process.pid).children(recursive=True)
        assert len(tree) == 4, "the command and its three children, orphans included"
        return guarded, tree

    return start


def gone(processes):
    return not any(is_alive(process) for process in processes)


@pytest.mark.parametrize("grace_s", [0.3, 0.0])
def test_the_whole_tree_ends_orphans_included(launch_family, grace_s):
    guarded, tree = launch_family()
    guarded.end(grace_s)
    assert gone(tree)
    assert guarded.process.returncode is not None


def test_the_tree_ends_when_the_command_is_killed(launch_family):
    guarded, tree = launch_family()
    next(process for process in tree if FAMILY in process.cmdline()).kill()
    assert guarded.process.wait(20) == -signal.SIGKILL
    assert gone(tree)


def test_the_tree_ends_when_the_guards_parent_is_killed(tmp_path):
    token, output = new_id("run"), tmp_path / "output"
    start = f"""
import time
from services.worker.supervision import GuardedProcess, marked_environment
with open({str(output)!r}, "wb") as file:
    command = {[sys.executable, "-S", "-c", FAMILY]!r}
    GuardedProcess.start(command, environment=marked_environment({token!r}), output=file, grace_s=0.3)
time.sleep(300)
"""
    parent = subprocess.Popen([sys.executable, "-c", start])
    try:
        wait_until(lambda: output.exists() and "up" in output.read_text(), what="the family is complete")
        tree = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
        wait_until(lambda: gone(tree), what="guard and tree are gone")
    finally:
        parent.kill()
        parent.wait(10)
        end_tree(token, None, 0.0)


def test_what_a_killed_guard_leaves_is_found_by_its_mark(launch_family):
    guarded, tree = launch_family()
    guarded.process.kill()
    guarded.process.wait(10)
    marked = marked_processes(guarded.mark)
    assert len(marked) >= 2, "its stubborn children live on"
    end_tree(guarded.mark, None, 0.3)
    assert gone(marked)
    for process in tree:  # but for the one that has forgotten whose it was
        if is_alive(process):
            process.kill()


def test_processes_below_a_command_may_ask_to_die_with_their_own_parent(launch):
    ask = "from services.worker.supervision import die_with_parent; die_with_parent()"
    code = f"import subprocess, sys; {ask}; sys.exit(subprocess.run([sys.executable, '-c', {ask!r}]).returncode)"
    assert launch(code, options=()).process.wait(30) == 0


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(5)", 5), ("import os; os.abort()", -signal.SIGABRT)])
def test_it_ends_as_its_command_ended(launch, code, status):
    assert launch(code).process.wait(20) == status


def test_a_command_that_obeys_is_not_killed(launch, tmp_path):
    guarded = launch(OBEDIENT, grace_s=30)
    wait_until(lambda: "up" in (tmp_path / "output").read_text(), what="it runs")
    guarded.end(30)
    assert guarded.process.returncode == 7


def test_a_command_that_cannot_be_run_is_an_error_and_no_hang(tmp_path):
    with (tmp_path / "output").open("wb") as output:
        guarded = GuardedProcess.start(
            [str(tmp_path / "absent")], environment=marked_environment(new_id("run")), output=output, grace_s=1
        )
    assert guarded.process.wait(20) == 127
    assert "absent cannot be run" in (tmp_path / "output").read_text()


def test_a_gpus_lock_is_free_only_when_guard_and_command_are_gone(launch, tmp_path):
    locks = GpuLocks(tmp_path / "locks", tmp_path)
    (descriptor,) = locks.take(["fake-0"])
    guarded = launch(STUBBORN, keep=(descriptor,), extra={GPUS_VARIABLE: "fake-0,GPU-a", STORE_VARIABLE: str(tmp_path)})
    os.close(descriptor)
    command = wait_until(lambda: psutil.Process(guarded.process.pid).children(), what="the command runs")
    assert not locks.is_free("fake-0")
    assert {"fake-0", "GPU-a"} <= gpus_in_use(tmp_path)
    elsewhere = gpus_in_use(tmp_path / "another")  # a faked GPU belongs to one store, a real one to the machine
    assert "GPU-a" in elsewhere
    assert "fake-0" not in elsewhere
    guarded.process.kill()
    guarded.process.wait(10)
    assert is_alive(command[0])
    assert not locks.is_free("fake-0"), "the command outlived its guard"
    end_tree(guarded.mark, None, 0.0)
    assert locks.is_free("fake-0")
