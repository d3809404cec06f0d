"""Ending a run's process tree: every process of it, wherever it went, and no other."""

import os
import subprocess
import sys

import psutil
import pytest

from services.worker.supervision import RUN_TOKEN_VARIABLE, end_tree, marked_environment, marked_processes
from shared.ids import new_id
from tests.support.wait import wait_until

SLEEPER = "import time; time.sleep(300)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
)
OBEDIENT = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", flush=True)
time.sleep(300)
"""
# A leader with a child in a session of its own and a stubborn grandchild; it ends on SIGTERM without ending them.
FAMILY = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)
subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True, stdout=subprocess.DEVNULL)
time.sleep(300)
"""


@pytest.fixture
def launch():
    started = []

    def start(code, token, **options):
        environment = marked_environment(token)
        process = subprocess.Popen([sys.executable, "-S", "-c", code], env=environment, **options)
        started.append((process, token))
        return process

    yield start
    for process, token in started:
        end_tree(token, None, 0.0)
        process.wait(10)


def test_all_processes_of_a_run_end_in_other_sessions_and_deaf_to_sigterm(launch):
    token = new_id("run")
    leader = launch(FAMILY, token)
    family = wait_until(lambda: found if len(found := marked_processes(token)) == 3 else [], what="three processes run")
    end_tree(token, leader.pid, 0.3)
    leader.wait(10)
    assert marked_processes(token) == []
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)


def test_a_process_that_obeys_is_not_killed(launch):
    token = new_id("run")
    leader = launch(OBEDIENT, token, stdout=subprocess.PIPE)
    leader.stdout.readline()
    end_tree(token, leader.pid, 30)
    assert leader.wait(10) == 7
    leader.stdout.close()


def test_a_stubborn_process_is_killed_after_the_grace(launch):
    token = new_id("run")
    leader = launch(STUBBORN, token, stdout=subprocess.PIPE)
    leader.stdout.readline()
    end_tree(token, leader.pid, 0.2)
    assert leader.poll() is not None
    leader.stdout.close()


def test_a_mark_covers_what_stands_below_it_and_no_other_run(launch):
    token = new_id("run")
    below, other = launch(SLEEPER, f"{token}.generate"), launch(SLEEPER, f"{token}0")
    wait_until(lambda: [process.pid for process in marked_processes(token)] == [below.pid], what="it carries the mark")
    end_tree(token, None, 5)
    below.wait(10)
    assert other.poll() is None


def test_ending_a_run_that_has_ended_does_nothing():
    end_tree(new_id("run"), None, 5)
    end_tree(new_id("run"), 2**22 + 1, 5)


def test_the_caller_is_never_ended(monkeypatch):
    token = new_id("run")
    monkeypatch.setenv(RUN_TOKEN_VARIABLE, token)
    assert os.getpid() not in [process.pid for process in marked_processes(token)]


def test_a_stage_does_not_learn_the_password_of_redis(monkeypatch):
    monkeypatch.setenv("EYRIE_REDIS_URL", "redis://:secret@host")
    monkeypatch.setenv("REDIS_URL", "redis://:secret@host")
    assert "secret" not in " ".join(marked_environment("run", {"EXTRA": "1"}).values())
    assert marked_environment("run", {"EXTRA": "1"})["EXTRA"] == "1"


def test_a_stage_learns_neither_the_buckets_credentials_nor_where_they_are(monkeypatch):
    hidden = ["ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "SHARED_CREDENTIALS_FILE", "CONFIG_FILE"]
    hidden += ["PROFILE", "WEB_IDENTITY_TOKEN_FILE", "ROLE_ARN", "CONTAINER_CREDENTIALS_FULL_URI"]
    for name in (*hidden, "REGION", "DEFAULT_REGION", "CA_BUNDLE"):
        monkeypatch.setenv(f"AWS_{name}", "x")
    seen = {name for name in marked_environment("run") if name.startswith("AWS_")}
    assert seen == {"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"}
