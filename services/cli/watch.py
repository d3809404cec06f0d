"""Follows a job: a live table on a terminal, plain lines elsewhere, lines of JSON for programs.

The job's events say when there is something new, and progress is asked for once a second; where no events flow,
the job is asked for once a second.
"""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from services.cli.calls.streams import ENDED, GIVE_UP_S
from services.cli.client import EyrieClient, JsonObject
from services.cli.errors import Unreachable
from services.cli.job_text import plain_lines, render_job
from services.cli.options import is_live

POLL_S = 1.0
IDLE_POLL_S = 5.0  # while events say what changes, and nothing counts
PLAIN_INTERVAL_S = 10.0
MOST_WARNINGS = 5  # of a stage: there may be one for each line of a dataset
FOLLOWED = ("job", "stage", "warning")

Each = Callable[[JsonObject], None]


def watch(
    client: EyrieClient, job_id: str, console: Console, poll_s: float = POLL_S, each: Each | None = None
) -> JsonObject:
    """Show the job until it has ended, and return it as it is then.

    A gateway that does not answer is waited for, up to `GIVE_UP_S` seconds. KeyboardInterrupt passes through: the job
    goes on.

    Args:
        each: is given the job whenever its status, or that of a stage, has changed, and when it has ended.

    Raises:
        ApiError: there is no such job, or no gateway.
    """
    job = client.get_job(job_id)
    with _Events(client, job) as events:
        if is_live(console):
            with Live(render_job(job), console=console, refresh_per_second=4) as live:
                return _follow(client, job, events, _LiveView(live), poll_s, each)
        return _follow(client, job, events, _PlainView(console), poll_s, each)


class _LiveView:
    """A table that is drawn over itself; warnings scroll above it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, job: JsonObject) -> None:
        self._live.update(render_job(job), refresh=job["status"] in ENDED)

    def say(self, text: str) -> None:
        self._live.console.print(Text(text, style="yellow"), soft_wrap=True)


class _PlainView:
    """Lines with the time, each said once; progress every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, str] = {}
        self._last_progress = float("-inf")

    def show(self, job: JsonObject) -> None:
        moment = time.monotonic()
        with_progress = moment - self._last_progress >= PLAIN_INTERVAL_S
        self._last_progress = moment if with_progress else self._last_progress
        for subject, line in plain_lines(job, with_progress):
            if self._said.get(subject) != line:
                self._said[subject] = line
                self.say(line)

    def say(self, text: str) -> None:
        line = f"{time.strftime('%H:%M:%S')} {text}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class _Events:
    """A job's events from a thread of their own; where there is no stream, none ever come."""

    def __init__(self, client: EyrieClient, job: JsonObject) -> None:
        self._items: queue.Queue[JsonObject | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, args=(client, job["id"]), daemon=True)
        self._wanted = job["status"] not in ENDED
        self.flowing = False

    def __enter__(self) -> Self:
        if self._wanted:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._wanted:  # the job has ended, and so does its stream
            self._thread.join(POLL_S)

    def wait(self, seconds: float) -> list[JsonObject]:
        """The events that have come; `seconds` are waited for the first."""
        found: list[JsonObject | None] = []
        try:
            found.append(self._items.get(timeout=seconds))
            while True:
                found.append(self._items.get_nowait())
        except queue.Empty:
            return [item for item in found if item is not None]

    def _read(self, client: EyrieClient, job_id: str) -> None:
        try:
            for event in client.stream_events(job_id, types=FOLLOWED):
                self.flowing = True
                self._items.put(event)
        except Exception:  # watching goes on without events
            self.flowing = False
        self._items.put(None)


def _follow(
    client: EyrieClient,
    job: JsonObject,
    events: _Events,
    view: _LiveView | _PlainView,
    poll_s: float,
    each: Each | None,
) -> JsonObject:
    seen: Any = None
    warned: Counter[str] = Counter()
    while True:
        view.show(job)
        states = [job["status"], job["attempt"], [(stage["status"], stage["attempt"]) for stage in job["stages"]]]
        if each and states != seen:
            each(job)
        seen = states
        if job["status"] in ENDED:
            return job
        counts = job["status"] == "running" or not events.flowing
        for event in events.wait(poll_s if counts else IDLE_POLL_S):
            if event["type"] == "warning":
                _warn(view, event["data"], warned, job["id"])
        job = _poll(client, job["id"], view)


def _warn(view: _LiveView | _PlainView, data: JsonObject, warned: Counter[str], job_id: str) -> None:
    stage = str(data.get("stage", "job"))
    warned[stage] += 1
    if warned[stage] <= MOST_WARNINGS:
        view.say(f"warning: {stage}: {data.get('message', '')}")
    elif warned[stage] == MOST_WARNINGS + 1:
        view.say(f"more warnings of {stage}: eyrie events {job_id} --type warning")


def _poll(client: EyrieClient, job_id: str, view: _LiveView | _PlainView) -> JsonObject:
    """The job as it is now; a gateway that is away is waited for."""
    away_since = time.monotonic()
    while True:
        try:
            return client.get_job(job_id)
        except Unreachable as error:
            if time.monotonic() - away_since > GIVE_UP_S:
                raise
            view.say(f"{error.message}; trying again")
            time.sleep(client.retry_wait_s)
