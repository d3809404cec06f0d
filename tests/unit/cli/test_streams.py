"""Streams over a transport of the test's own: cut off and gone on with, without a gap and nothing twice."""

import json
from collections.abc import Iterator

import httpx
import pytest

from services.cli.calls import streams
from services.cli.client import EyrieClient
from services.cli.errors import NotFound, Unreachable

EVENTS = [{"id": f"{n}-0", "type": "stage", "data": {"n": n}} for n in range(1, 8)]
END = "event: end\ndata: {}\n\n"


def as_sse(event: dict) -> str:
    return f"id: {event['id']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n"


def sse(content: str | Iterator[bytes]) -> httpx.Response:
    body = content.encode() if isinstance(content, str) else content
    return httpx.Response(200, content=body, headers={"content-type": "text/event-stream; charset=utf-8"})


def followed(handler, notices: list[str] | None = None, **options) -> list[dict]:
    notice = None if notices is None else notices.append
    with EyrieClient("http://gateway", retry_wait_s=0, transport=httpx.MockTransport(handler)) as client:
        return list(client.follow_events("job_x", notice=notice, **options))


def test_a_stream_that_is_cut_off_again_and_again_has_no_gap_and_nothing_twice() -> None:
    seen: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("last-event-id"))
        start = int((seen[-1] or "0").partition("-")[0])

        def pieces() -> Iterator[bytes]:
            for event in EVENTS[start : start + 2]:
                yield as_sse(event).encode()
                yield b": still there\n\n"
            if start + 2 >= len(EVENTS):
                yield END.encode()
            elif len(seen) % 2:
                yield as_sse(EVENTS[start + 2]).encode()[:20]
                raise httpx.ReadError("cut")

        return sse(pieces())

    assert followed(handler) == EVENTS
    assert seen == [None, "2-0", "4-0", "6-0"]


def test_a_gateway_that_restarts_is_waited_for_and_that_is_said_once() -> None:
    answers: list[httpx.Response | Exception] = [
        sse(as_sse(EVENTS[0])),
        httpx.ConnectError("refused"),
        httpx.Response(503, json={"detail": "Redis is away"}),
        httpx.ConnectError("refused"),
        sse(as_sse(EVENTS[1]) + END),
    ]

    def handler(_: httpx.Request) -> httpx.Response:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    notices: list[str] = []
    assert followed(handler, notices) == EVENTS[:2]
    assert len(notices) == 1
    assert "trying again" in notices[0]


def test_a_gateway_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "GIVE_UP_S", 0.0)

    def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(Unreachable, match="does not answer"):
        followed(handler)


def test_a_job_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(NotFound, match="no job"):
        followed(lambda _: httpx.Response(404, json={"detail": "no job job_x"}))


@pytest.mark.parametrize("refusal", [406, 200])
def test_without_streams_the_same_comes_by_pages_until_the_job_has_ended(
    refusal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "POLL_S", 0.0)
    looks: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if "event-stream" in request.headers["accept"]:
            return httpx.Response(refusal, json={"data": [], "detail": "pages only"})
        if not request.url.path.endswith("/events"):
            looks.append("running" if len(looks) < 3 else "succeeded")
            return httpx.Response(200, json={"status": looks[-1]})
        start = int(request.url.params.get("after", "0").partition("-")[0])
        there = EVENTS[: 2 * len(looks)]
        return httpx.Response(200, json={"data": there[start : start + 1], "has_more": len(there) > start + 1})

    assert followed(handler) == EVENTS
    assert looks[-1] == "succeeded"


def test_only_the_types_that_are_asked_for_are_asked_of_the_gateway() -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.params))
        return sse(END)

    assert followed(handler, types=["stage", "warning"]) == []
    assert asked == ["types=stage&types=warning"]
