"""Many readers of event streams who do not read: the gateway holds little for each, no thread, and goes on working."""

import json
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from shared.event_log import stream
from tests.integration.conftest import open_redis
from tests.support.gateway_process import gateway_process
from tests.support.wait import wait_until
from tools.embedded_redis import RedisHandle

pytestmark = [pytest.mark.api, pytest.mark.slow]
READERS = 200  # of a job where nothing happens
STALLED = 20  # who do not read what happened in another job
EVENTS = 4000
PADDING = "x" * 2000  # all events together: 8 MB, which would be 160 MB for all who are stalled


def connect(url: str, job: str) -> socket.socket:
    """A client that asks for a stream and leaves it at that."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    host = httpx.URL(url)
    connection.connect((host.host, host.port))
    request = f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    connection.sendall(request.encode())
    return connection


def fill(redis_url: str, job: str) -> None:
    with open_redis(redis_url) as redis:
        pipeline = redis.pipeline(transaction=False)
        for step in range(EVENTS):
            data = json.dumps({"step": step, "padding": PADDING})
            pipeline.xadd(stream(job), {"type": "metric", "at": "2026-01-01T00:00:00Z", "data": data})
        pipeline.execute()


def test_readers_that_do_not_read_cost_little_and_hold_no_thread(redis_handle: RedisHandle, tmp_path: Path) -> None:
    with (
        gateway_process(tmp_path, redis_handle.url) as gateway,
        httpx.Client(base_url=gateway.url, timeout=60) as http,
        ExitStack() as readers,
    ):
        dataset = http.post("/v1/datasets", content=b'{"prompt": "a"}\n').json()["id"]
        idle, job = (http.post("/v1/jobs", json={"data": {"dataset": dataset}}).json()["id"] for _ in range(2))
        fill(redis_handle.url, job)
        process = psutil.Process(gateway.process.pid)
        before, threads = process.memory_info().rss, process.num_threads()
        waiting = [readers.enter_context(connect(gateway.url, idle)) for _ in range(READERS)]
        stalled = [readers.enter_context(connect(gateway.url, job)) for _ in range(STALLED)]
        for connection in waiting + stalled:
            assert connection.recv(1000, socket.MSG_PEEK).startswith(b"HTTP/1.1 200")
        assert http.get(f"/v1/jobs/{job}").status_code == 200
        assert http.get(f"/v1/jobs/{job}/events", params={"limit": 1000}).json()["has_more"]
        assert process.num_threads() - threads < 60
        assert steps(stalled[0]) == list(range(EVENTS))  # who starts to read gets all of it
        assert process.memory_info().rss - before < 80 * 2**20
        gateway.process.terminate()
        wait_until(lambda: gateway.process.poll() is not None, 18, what="the gateway ends beside them")


def steps(connection: socket.socket) -> list[int]:
    """Read to the last event, as fast as they come."""
    found: list[int] = []
    with connection.makefile("rb") as lines:
        while len(found) < EVENTS:
            line = lines.readline()
            assert line, "cut off"
            if line.startswith(b"data: ") and b'"metric"' in line:
                found.append(json.loads(line[6:])["data"]["step"])
    return found
