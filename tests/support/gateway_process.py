"""The real gateway as a process of its own, for tests."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.wait import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_S = 60


@dataclass
class GatewayProcess:
    """A gateway that runs, and where it keeps things."""

    url: str
    store: Path
    log: Path
    process: "subprocess.Popen[bytes]"


@contextmanager
def gateway_process(
    folder: Path,
    redis_url: str,
    variables: dict[str, str] | None = None,
    port: int | None = None,
    root: Path = ROOT,
    **settings: str,
) -> Iterator[GatewayProcess]:
    """A gateway on a loopback port; `settings` are EYRIE_ variables without the prefix, in lower case.

    Args:
        variables: further ones, as they are.
        port: absent: a free one.
        root: the checkout whose gateway it is.
    """
    port = port or free_port()
    store = folder / "store"
    environment = os.environ | {
        "EYRIE_REDIS_URL": redis_url,
        "EYRIE_STORE_ROOT": str(store),
        "EYRIE_GATEWAY_PORT": str(port),
        "EYRIE_VERIFIER_URL": "http://127.0.0.1:9",
        "HF_HOME": str(folder / "no-models"),
    }
    environment |= {f"EYRIE_{name.upper()}": value for name, value in settings.items()} | (variables or {})
    log = folder / f"gateway-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.gateway"], cwd=root, env=environment, stdout=output, stderr=output
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: process.poll() is not None or _answers(url), START_S, what=f"gateway, {log}")
        assert process.poll() is None, log.read_text()
        yield GatewayProcess(url, store, log, process)
    finally:
        process.terminate()
        process.wait(20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=1).status_code == 200
    except httpx.TransportError:
        return False
