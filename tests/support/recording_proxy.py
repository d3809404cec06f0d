"""A proxy in front of a verifier that keeps what passes, for tests that compare what was stored with what was said."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

COPIED_HEADERS = ("Content-Type", "X-Request-Id")


@dataclass
class Recording:
    """Answers that passed, by `X-Request-Id`; chat completions only."""

    url: str
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)


@contextmanager
def recording_proxy(target: str) -> Iterator[Recording]:
    """Forward everything to `target` on a free loopback port for the length of a block."""
    client = httpx.Client(base_url=target, timeout=600, trust_env=False)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._forward(None)

        def do_POST(self) -> None:
            self._forward(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _forward(self, body: bytes | None) -> None:
            headers = {name: self.headers[name] for name in COPIED_HEADERS if self.headers[name]}
            answer = client.request(self.command, self.path, content=body, headers=headers)
            if self.path == "/v1/chat/completions" and answer.is_success:
                recording.answers[self.headers["X-Request-Id"]] = json.loads(answer.content)
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    recording = Recording(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield recording
    finally:
        server.shutdown()
        server.server_close()
        client.close()
