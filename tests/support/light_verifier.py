"""A stand-in for a verifier that a worker starts: it answers /health, and has a stubborn engine in its own session."""

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from tests.support.light_stages.scripted import CHILD


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


if __name__ == "__main__":
    subprocess.Popen([sys.executable, "-S", "-c", CHILD], start_new_session=True)
    address = os.environ["EYRIE_VERIFIER_HOST"], int(os.environ["EYRIE_VERIFIER_PORT"])
    HTTPServer(address, Handler).serve_forever()
