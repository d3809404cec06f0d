"""Following a job: to its end, into a pipe, on a terminal, and away from it by Ctrl-C."""

import json
import os
import pty
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from shared.errors import StatusReason
from shared.schemas.job import ErrorDetail, JobRecord, JobStatus, Stage
from tests.integration.cli.conftest import Service, Shell
from tests.support.gateway_process import ROOT, GatewayProcess, free_port, gateway_process
from tests.support.wait import wait_until

BAR = "━"
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]m")


@pytest.fixture(scope="module")
def held(service: Service, finished: JobRecord) -> Iterator[JobRecord]:
    """A job whose training waits until the tests are over."""
    go = service.site.folder / "go"
    changes = {"data": {"dataset": finished.spec.data.dataset}, "train": {"lr": 3e-3}}
    job_id = service.site.submit(**changes, metadata={"train": f"hold {go}"})
    wait_until(lambda: list(go.parent.glob("go.reached.*")), 60, what="training has begun")
    yield service.site.jobs.get(job_id)
    go.touch()
    service.site.wait_for(job_id, JobStatus.SUCCEEDED)


@contextmanager
def on_terminal(service: Service, *arguments: str, **variables: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """`eyrie` with a terminal of its own, and the other end of that."""
    master, slave = pty.openpty()
    environment = {**os.environ, **service.environment, "TERM": "xterm-256color", "COLUMNS": "150", **variables}
    command = [sys.executable, "-m", "services.cli.main", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        yield process, master
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_until(terminal: int, text: str, timeout_s: float = 60) -> str:
    """What comes to a terminal, up to some text."""
    found, end = "", time.monotonic() + timeout_s
    while text not in found:
        assert time.monotonic() < end, f"{text!r} not in {found!r}"
        if select.select([terminal], [], [], 0.5)[0]:
            found += os.read(terminal, 1 << 16).decode("utf-8", "replace")
    return found


@dataclass
class Follower:
    """`eyrie` as it follows something into a pipe; `errors` is what it said to standard error, at its end."""

    process: "subprocess.Popen[str]"
    lines: "queue.Queue[str]" = field(default_factory=queue.Queue)
    errors: str = ""

    def read_until(self, text: str) -> list[str]:
        """The next lines, up to one with some text in it."""
        found = [self.lines.get(timeout=60)]
        while text not in found[-1]:
            found.append(self.lines.get(timeout=60))
        return found

    def interrupt(self) -> int:
        """Press Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(30)
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()
        return code


@contextmanager
def follower(service: Service, *arguments: str) -> Iterator[Follower]:
    command = [sys.executable, "-m", "services.cli.main", *arguments]
    environment = {**os.environ, **service.environment}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    found = Follower(process)
    assert process.stdout is not None
    lines = process.stdout
    reader = threading.Thread(target=lambda: [found.lines.put(line.rstrip("\n")) for line in lines], daemon=True)
    reader.start()
    try:
        yield found
    finally:
        process.kill()
        process.wait()
        reader.join()


def test_a_failed_job_says_what_went_wrong_what_to_do_and_what_the_stage_wrote_last(
    shell: Shell, service: Service, failed: JobRecord
) -> None:
    log = service.site.store.path(f"jobs/{failed.id}/logs/train-1.log")
    with log.open("a") as file:
        file.write("the last words\n")
    text = shell("watch", failed.id, code=1)
    assert "user_error: line 3: this cannot work (give another)" in text
    assert BAR not in text
    for part in (
        "the last words",
        f"eyrie logs {failed.id} --stage train",
        f"eyrie show {failed.id} -o json | jq .spec",
    ):
        assert part in shell.errors
    assert "as docs/errors/user_error.md says" in shell.errors
    assert "eyrie retry" not in shell.errors  # it would fail again
    assert "the last words" in shell("logs", failed.id, "--stage", "train", "--tail", "1")


@pytest.mark.parametrize("reason", ["worker_lost", "timeout"])
def test_what_to_do_after_a_failure_fits_its_reason(
    shell: Shell, service: Service, failed: JobRecord, reason: str
) -> None:
    job = service.site.jobs.create(failed.spec)

    def fail(record: JobRecord) -> None:
        record.status = JobStatus.FAILED
        record.error = ErrorDetail(reason=StatusReason(reason), message="so it is")

    service.site.jobs.update(job.id, lambda record: setattr(record, "status", JobStatus.RUNNING))
    service.site.jobs.update(job.id, fail)
    shell("watch", job.id, code=1)
    assert f"docs/errors/{reason}.md" in shell.errors
    assert (f"eyrie retry {job.id}" in shell.errors) == (reason == "worker_lost")
    assert ("change its document" in shell.errors) == (reason == "timeout")


def test_a_reader_that_goes_away_is_no_failed_job(service: Service, failed: JobRecord) -> None:
    command = [sys.executable, "-m", "services.cli.main", "show", failed.id]
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | service.environment, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_programs_that_watch_get_the_job_as_json_lines(shell: Shell, failed: JobRecord) -> None:
    states = shell.lines("watch", failed.id, code=1)
    assert [(state["object"], state["id"]) for state in states] == [("job", failed.id)]
    assert states[-1]["status"] == "failed"


def test_a_terminal_has_bars_and_ctrl_c_only_detaches(service: Service, held: JobRecord) -> None:
    with on_terminal(service, "watch", held.id) as (process, terminal):
        text = read_until(terminal, "1/2 steps")
        assert BAR in text
        assert COLOUR.search(text)
        process.send_signal(signal.SIGINT)
        left = read_until(terminal, f"eyrie watch {held.id}")
        assert process.wait(30) == 130
    assert "detached" in left
    assert service.site.jobs.get(held.id).status == JobStatus.RUNNING


def test_a_terminal_without_colours_has_none(service: Service, failed: JobRecord) -> None:
    with on_terminal(service, "show", failed.id, NO_COLOR="1") as (_, terminal):
        text = read_until(terminal, "this cannot work")
    assert not COLOUR.search(text)


def test_a_pipe_has_neither_bars_nor_colours_whatever_the_environment_forces(
    shell: Shell, failed: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = shell("watch", failed.id, code=1)
    assert "failed" in text
    assert BAR not in text


def test_logs_are_followed_as_they_are_written_and_ctrl_c_only_detaches(service: Service, held: JobRecord) -> None:
    log = service.site.store.path(f"jobs/{held.id}/logs/train-1.log")
    with follower(service, "logs", "-f", held.id, "--stage", "train") as logs:
        for words in ("first", "second"):
            with log.open("a") as file:
                file.write(f"{words}\n")
            assert logs.read_until(words)[-1] == words
        assert logs.interrupt() == 130
    assert f"eyrie logs -f {held.id} --stage train" in logs.errors
    assert "Traceback" not in logs.errors
    assert service.site.jobs.get(held.id).stage(Stage.TRAIN).status == "running"


def test_events_are_followed_over_a_restart_of_the_gateway_without_a_gap_and_nothing_twice(
    service: Service, held: JobRecord
) -> None:
    port = free_port()

    def gateway() -> AbstractContextManager[GatewayProcess]:
        key = str(service.key_file)
        return gateway_process(service.site.folder, service.site.redis.url, port=port, api_key_file=key)

    def tell(message: str) -> None:
        service.site.jobs.append_event(held.id, "note", {"message": message})

    address = ("--url", f"http://127.0.0.1:{port}", "--output", "json")
    with ExitStack() as stack:
        with gateway():
            stream = stack.enter_context(follower(service, "events", "-f", held.id, *address))
            tell("before")
            seen = stream.read_until("before")
        tell("meanwhile")
        with gateway():
            tell("after")
            seen += stream.read_until("after")
            assert stream.interrupt() == 130
    events = [json.loads(line) for line in seen]
    notes = [event["data"]["message"] for event in events if event["type"] == "note"]
    assert notes == ["before", "meanwhile", "after"]
    assert len({event["id"] for event in events}) == len(events)
