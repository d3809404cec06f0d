"""A user of the service while it breaks: submits jobs, insists politely, and writes down everything that it is told."""

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.chaos.site import ChaosSite
from tests.support.wait import wait_until

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
POLL_S = 0.2
MOVING = frozenset({"running", "pausing", "cancelling"})
RARELY = 20  # one that waits or has ended is looked at so much less often
TIMEOUT_S = 10.0
STILL_S = 240.0
LONGEST_S = 3600.0


@dataclass(frozen=True)
class Look:
    """One answer about one job: status, percent, the step of its training, and its shortest duration (0 at most).

    It was true at some moment from `asked_at` to `at`.
    """

    asked_at: float
    at: float
    job: str
    status: str
    percent: float
    step: float | None
    attempt: int
    finished_stages: frozenset[str]
    seconds: float


@dataclass
class Driver:
    """Speaks to whichever gateway lives; a refusal with 503, or none at all, is asked again.

    Attributes:
        history: every answer about every job, in order.
        accepted: jobs that a gateway has acknowledged.
        restarts: when Redis lost everything, from and to: jobs may start again from their stages.
    """

    site: ChaosSite
    seed: int
    history: list[Look] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    restarts: list[tuple[float, float]] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Driver":
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        lines = [json.dumps({**vars(look), "finished_stages": sorted(look.finished_stages)}) for look in self.history]
        (self.site.folder / "history.jsonl").write_text("\n".join(lines))

    def submit(self, steps: int = 3, step_s: float = 0.02, **changes: Any) -> str:
        """Have a job accepted; no two of a driver are equal, so that none reuses another's stages."""
        number = next(self._numbers)
        document = self._document(number, steps, step_s, changes)
        key = {"Idempotency-Key": f"chaos-{self.seed}-{number}"}
        job: dict[str, Any] = self.ask("POST", "/v1/jobs", json=document, headers=key)
        self.accepted.append(job["id"])
        return str(job["id"])

    def is_refused(self) -> bool:
        """Ask once for a short job; False where it was accepted all the same."""
        document = self._document(next(self._numbers), 1, 0.0, {})
        response = httpx.post(f"{self.site.urls()[0]}/v1/jobs", json=document, timeout=TIMEOUT_S)
        assert response.status_code in (201, 503), response.text
        if response.is_success:
            self.accepted.append(response.json()["id"])
        return not response.is_success

    def is_cancelled(self, job_id: str) -> bool:
        """Ask once to cancel a job; False where it had ended before."""
        response = httpx.post(f"{self.site.urls()[0]}/v1/jobs/{job_id}/cancel", timeout=TIMEOUT_S)
        assert response.status_code in (200, 409), response.text
        return response.is_success

    def _document(self, number: int, steps: int, step_s: float, changes: dict[str, Any]) -> dict[str, Any]:
        if not hasattr(self, "dataset"):
            rows = "\n".join(json.dumps({"prompt": f"prompt-{row}"}) for row in range(4))
            self.dataset = self.ask("POST", "/v1/datasets?name=chaos", content=rows)["id"]
        return {
            "preset": "tiny",
            "verifier": {"model": str(self.site.verifier)},
            "data": {"dataset": self.dataset, "seed": self.seed * 10_000 + number, **changes.pop("data", {})},
            "draft": {"vocab_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8},
            "metadata": {"steps": str(steps), "step_s": str(step_s)},
            **changes,
        }

    def retry(self, job_id: str) -> str:
        """Have a job that ended badly done again; returns the id of the new one."""
        again = str(self.ask("POST", f"/v1/jobs/{job_id}/retry")["id"])
        self.accepted.append(again)
        return again

    def ask(self, method: str, path: str, timeout_s: float = 180.0, **arguments: Any) -> dict[str, Any]:
        """Ask until somebody answers; an answer of the 4xx kind is a failure of the test."""

        def once() -> httpx.Response | None:
            for url in self.site.urls():
                try:
                    response = httpx.request(method, url + path, timeout=TIMEOUT_S, **arguments)
                except httpx.TransportError:
                    continue
                first_under_way = response.status_code == 409 and "Idempotency-Key" in arguments.get("headers", {})
                if response.status_code < 500 and not first_under_way:
                    return response
            return None

        response = wait_until(once, timeout_s, POLL_S, what=f"{method} {path} answered")
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        answer: dict[str, Any] = response.json()
        return answer

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as the service shows it now."""
        return self.ask("GET", f"/v1/jobs/{job_id}")

    def wait_for_end(self) -> dict[str, dict[str, Any]]:
        """Wait until every accepted job has ended; returns them as they are shown then."""
        ended: dict[str, dict[str, Any]] = {}

        def all_ended() -> bool:
            for job_id in self.accepted:
                if job_id not in ended and (job := self._ended(job_id)):
                    ended[job_id] = job
            return len(ended) == len(self.accepted)

        self.wait_while_moving(all_ended, "all jobs end")
        return ended

    def wait_while_moving(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something for as long as jobs get on, however slow the machine is.

        Raises:
            AssertionError: nothing that is shown of any job has changed for `STILL_S`, or `LONGEST_S` are over.
        """
        begun = moved = time.monotonic()
        states = set[Any]()
        while not condition():
            seen = {(look.job, look.status, look.percent, look.step, look.attempt) for look in list(self.history)}
            moment = time.monotonic()
            moved = moment if seen - states else moved
            states = seen
            assert moment - moved < STILL_S, f"nothing has moved for {STILL_S} s: {what}"
            assert moment - begun < LONGEST_S, f"not within {LONGEST_S} s: {what}"
            time.sleep(0.5)

    @contextlib.contextmanager
    def restart(self) -> Iterator[None]:
        """Within the block Redis is emptied: what is shown of a job under way may fall once."""
        begun = time.monotonic()
        yield
        self.restarts.append((begun, time.monotonic()))

    def wait_for_step(self, job_id: str, step: int, timeout_s: float = 180.0) -> None:
        """Wait until a job's training has really taken a step, by the journal."""

        def reached() -> bool:
            events = self.site.journal.read()
            return any(e["kind"] == "step" and e["job"] == job_id and e["step"] >= step for e in events)

        wait_until(reached, timeout_s, what=f"{job_id} takes step {step}")

    def _ended(self, job_id: str) -> dict[str, Any] | None:
        job = self.job(job_id)
        return job if job["status"] in TERMINAL else None

    def _watch(self) -> None:
        looks, latest = 0, dict[str, Look]()
        while not self._stop.wait(POLL_S):
            looks += 1
            for job_id in list(self.accepted):
                if looks % RARELY and job_id in latest and latest[job_id].status not in MOVING:
                    continue
                for url in self.site.urls()[:1]:
                    asked_at = time.monotonic()
                    try:
                        response = httpx.get(f"{url}/v1/jobs/{job_id}", timeout=TIMEOUT_S)
                    except httpx.TransportError:
                        continue
                    if response.is_success:
                        latest[job_id] = _look(asked_at, response.json())
                        self.history.append(latest[job_id])


def _look(asked_at: float, job: dict[str, Any]) -> Look:
    train = next(stage for stage in job["stages"] if stage["name"] == "train")
    progress = train["progress"] or {}
    done = frozenset(stage["name"] for stage in job["stages"] if stage["status"] in ("succeeded", "reused"))
    return Look(
        asked_at=asked_at,
        at=time.monotonic(),
        job=job["id"],
        status=job["status"],
        percent=job["progress"]["percent"],
        step=progress.get("done"),
        attempt=job["attempt"],
        finished_stages=done,
        seconds=min(value for value in [*job["durations"].values(), 0.0] if value is not None),
    )
