"""What happens to a job, as it happens: server-sent events, and pages of the same where a gateway has no streams.

A connection that breaks, or a gateway that restarts, costs nothing: the next connection names the last id it has seen.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence

import httpx
from httpx_sse import connect_sse

from services.cli.calls.base import TIMEOUT_S, Calls, JsonObject, address
from services.cli.errors import Unreachable, error_of

ENDED = frozenset({"succeeded", "failed", "cancelled"})
SILENCE_S = 60.0  # a stream says something every 15 seconds; one that is silent for longer is dead
GIVE_UP_S = 300.0
MOST_WAIT_S = 10.0
POLL_S = 1.0

Notice = Callable[[str], None]
"""Called with a sentence when the gateway does not answer and is asked again."""


class NoStream(Exception):
    """The gateway, or a proxy before it, has no such stream."""


class StreamCalls(Calls):
    """`/v1/jobs/{id}/events` and `/v1/jobs/{id}/logs`, followed to the job's end."""

    def follow_events(
        self, job_id: str, *, after: str | None = None, types: Sequence[str] = (), notice: Notice | None = None
    ) -> Iterator[JsonObject]:
        """Each event of a job once, oldest first, from the one that follows `after`; ends when the job has ended."""
        path, params = address("jobs", job_id, "events"), _types(types)
        try:
            yield from self.stream_events(job_id, after=after, types=types, notice=notice)
        except NoStream:
            yield from self._pages(job_id, path, params, after)

    def stream_events(
        self, job_id: str, *, after: str | None = None, types: Sequence[str] = (), notice: Notice | None = None
    ) -> Iterator[JsonObject]:
        """The same as a stream alone.

        Raises:
            NoStream: there is none.
        """
        yield from self._stream(address("jobs", job_id, "events"), _types(types), after, notice)

    def follow_logs(
        self,
        job_id: str,
        *,
        stage: str | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        notice: Notice | None = None,
    ) -> Iterator[JsonObject]:
        """Each line of a job's logs once, with `stage` and `attempt`, from the last `tail` on; ends with the job."""
        path = address("jobs", job_id, "logs")
        given = {"stage": stage, "attempt": attempt, "tail": tail}
        params = {name: value for name, value in given.items() if value is not None}
        try:
            yield from self._stream(path, params, None, notice)
        except NoStream:
            yield from self._pages(job_id, path, params, None)

    def _stream(self, path: str, params: JsonObject, after: str | None, notice: Notice | None) -> Iterator[JsonObject]:
        patience = _Patience(self.retry_wait_s, notice)
        while True:
            try:
                for item in self._connection(path, params, after):
                    patience.renew()
                    if item is None:
                        return
                    after = item.get("id", after)
                    yield item
                patience.wait(Unreachable(f"the gateway at {self.url} has closed the stream"))
            except httpx.TransportError as error:
                patience.wait(self._unreachable(error))
            except Unreachable as error:
                patience.wait(error)

    def _connection(self, path: str, params: JsonObject, after: str | None) -> Iterator[JsonObject | None]:
        """What one connection brings; None where the stream is over for good."""
        headers = {"Last-Event-ID": after} if after else {}
        timeout = httpx.Timeout(TIMEOUT_S, read=SILENCE_S)
        with connect_sse(self._http, "GET", path, params=params, headers=headers, timeout=timeout) as source:
            if source.response.status_code in (406, 501):
                raise NoStream
            if source.response.status_code >= 400:
                source.response.read()
                raise error_of(source.response)
            if not source.response.headers.get("content-type", "").startswith("text/event-stream"):
                raise NoStream
            for event in source.iter_sse():
                if event.event == "end":
                    yield None
                    return
                if event.data:
                    yield {**json.loads(event.data)} | ({"id": event.id} if event.id else {})

    def _pages(self, job_id: str, path: str, params: JsonObject, after: str | None) -> Iterator[JsonObject]:
        while True:
            over = self._get(address("jobs", job_id))["status"] in ENDED
            page = self._get(path, params=params | ({"after": after} if after else {}))
            for item in page["data"]:
                after = item["id"]
                yield item
            if not page["has_more"]:
                if over:
                    return
                time.sleep(POLL_S)


def _types(types: Sequence[str]) -> JsonObject:
    return {"types": list(types)} if types else {}


class _Patience:
    """How long a gateway that does not answer is waited for, and how often it is asked."""

    def __init__(self, wait_s: float, notice: Notice | None) -> None:
        self._first_wait_s = wait_s
        self._notice = notice
        self.renew()

    def renew(self) -> None:
        """It has answered."""
        self._wait_s = self._first_wait_s
        self._failures = 0
        self._since = 0.0

    def wait(self, error: Unreachable) -> None:
        """Wait before the next try; from the second on people are told.

        Raises:
            Unreachable: it has been away for too long.
        """
        self._failures += 1
        if self._failures == 1:
            self._since = time.monotonic()
        if self._failures == 2 and self._notice:
            self._notice(f"{error.message}; trying again")
        if time.monotonic() - self._since > GIVE_UP_S:
            raise error
        time.sleep(self._wait_s)
        self._wait_s = min(self._wait_s * 2, MOST_WAIT_S)
