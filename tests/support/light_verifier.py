"""A stand-in for a verifier that a worker starts: it answers /health, and has a stubborn engine in its own session.

With `EYRIE_LIGHT_VERIFIER_HOLD` it says how far it has loaded, as vLLM does, and waits for that file first.
"""

import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.support.light_stages.scripted import CHILD


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def load() -> None:
    if hold := os.environ.get("EYRIE_LIGHT_VERIFIER_HOLD"):
        print("INFO [gpu_model_runner.py:5040] Starting to load model x...", flush=True)
        print("Loading safetensors checkpoint shards:  25% Completed | 16/64 [00:01<00:03,  9.1it/s]", flush=True)
        while not Path(hold).exists():
            time.sleep(0.05)


if __name__ == "__main__":
    load()
    subprocess.Popen([sys.executable, "-S", "-c", CHILD], start_new_session=True)
    address = os.environ["EYRIE_VERIFIER_HOST"], int(os.environ["EYRIE_VERIFIER_PORT"])
    HTTPServer(address, Handler).serve_forever()
