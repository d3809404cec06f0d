"""A receiver of webhooks on loopback that verifies each signature with the standardwebhooks library."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook


@dataclass
class Receiver:
    """What arrived, and what is answered.

    Attributes:
        answer: status for the n-th request (from 0), `"hang"`, or `"drip"` for a header that never ends.
        verified: id and parsed body of every message whose signature was right.
    """

    port: int = 0
    secret: str = ""
    answer: Callable[[int], int | str] = lambda _: 204
    requests: list[dict[str, str]] = field(default_factory=list)
    verified: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers in self.requests]


@contextmanager
def webhook_receiver(port: int = 0) -> Iterator[Receiver]:
    """Receive on a free port, or on `port`."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            number = len(receiver.requests)
            receiver.requests.append({**headers, "path": self.path})
            if receiver.secret:
                receiver.verified.append((headers["webhook-id"], Webhook(receiver.secret).verify(body, headers)))
            answer = receiver.answer(number)
            if answer == "drip":
                self.wfile.write(b"HTTP/1.1 204 No Content\r\nX-Slow: ")
                while not receiver.released.wait(0.1):
                    self.wfile.write(b"a")
                return
            if answer == "hang":
                receiver.released.wait()
                return
            self.send_response(int(answer))
            if 300 <= int(answer) < 400:
                self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: Any) -> None:
            """A sender that went away is no news."""

    server = Server(("127.0.0.1", port), Handler)
    receiver.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        server.server_close()
