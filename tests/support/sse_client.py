"""A client of server-sent events, as a browser's EventSource is one: it parses, and it knows where it stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Message:
    """One event of a stream."""

    event: str
    data: str
    id: str | None

    def json(self) -> Any:
        return httpx.Response(200, text=self.data).json()


@dataclass
class EventSource:
    """Reads one address, over as many connections as it takes; `last_id` is what the next one goes on after."""

    url: str
    last_id: str | None = None
    comments: list[str] = field(default_factory=list)

    @contextmanager
    def connect(self, base: str, timeout_s: float = 30.0, **params: Any) -> Iterator[Iterator[Message]]:
        """Open a connection; leaving the block cuts it off."""
        headers = {"Accept": "text/event-stream"}
        if self.last_id is not None:
            headers["Last-Event-ID"] = self.last_id
        with httpx.stream("GET", f"{base}{self.url}", headers=headers, params=params, timeout=timeout_s) as response:
            if response.status_code != 200:
                raise AssertionError(f"{response.status_code}: {response.read().decode()}")
            assert response.headers["content-type"].startswith("text/event-stream")
            yield self._messages(response.iter_lines())

    def read(self, base: str, most: int | None = None, **params: Any) -> list[Message]:
        """Read until `end`, or `most` messages, and cut the connection off."""
        found: list[Message] = []
        with self.connect(base, **params) as messages:
            for message in messages:
                found.append(message)
                if message.event == "end" or len(found) == most:
                    break
        return found

    def _messages(self, lines: Iterator[str]) -> Iterator[Message]:
        event, data, event_id = "message", [], None
        for line in lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if line == "":
                if data:
                    self.last_id = event_id or self.last_id
                    yield Message(event, "\n".join(data), event_id)
                event, data, event_id = "message", [], None
            elif name == "":
                self.comments.append(value)
            elif name == "event":
                event = value
            elif name == "data":
                data.append(value)
            elif name == "id":
                event_id = value
