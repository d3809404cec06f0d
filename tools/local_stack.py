"""Eyrie's services on this machine without containers: Redis, verifier, gateway and worker, on loopback.

    python -m tools.local_stack up      # start them and leave them running
    python -m tools.local_stack down    # end them

State, logs and data lie in `var/local`. `REDIS_URL` makes it use a Redis that runs already.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import psutil
from redis import Redis
from redis.exceptions import RedisError

from shared.presets import TINY_VERIFIER
from shared.verifier_settings import VerifierMode, VerifierSettings
from tools.embedded_redis import RedisNotStarted, start_redis
from tools.stack_services import (
    Service,
    StackError,
    asked_port,
    end_service,
    find_process,
    require_alive,
    uninterrupted,
    usable_port,
)

ROOT = Path(__file__).resolve().parent.parent
LOCAL_FOLDER = ROOT / "var" / "local"
GATEWAY_PORT = 8700
VERIFIER_PORT = 8710
START_TIMEOUT_S = 600.0
POLL_S = 0.2
BAD_INPUT = 2


@dataclass
class Stack:
    """Running services and where they are."""

    folder: str
    gateway_url: str
    verifier_url: str
    redis_url: str
    services: list[Service] = field(default_factory=list)

    def save(self) -> None:
        path = Path(self.folder) / "stack.json"
        path.with_suffix(".tmp").write_text(json.dumps(asdict(self), indent=1))
        path.with_suffix(".tmp").replace(path)

    def environment(self) -> dict[str, str]:
        """What gateway and worker are started with."""
        return {
            **os.environ,
            "EYRIE_REDIS_URL": self.redis_url,
            "EYRIE_STORE_ROOT": str(Path(self.folder) / "store"),
            "EYRIE_EXCHANGE_ROOT": str(Path(self.folder) / "exchange"),
            "EYRIE_VERIFIER_URL": self.verifier_url,
            "EYRIE_GATEWAY_HOST": "127.0.0.1",
            "EYRIE_API_KEY_FILE": "",  # on loopback nobody is asked for one
            "EYRIE_GATEWAY_PORT": self.gateway_url.rsplit(":", 1)[-1],
        }

    def launch(self, name: str, module: str, environment: dict[str, str]) -> Service:
        """Start `python -m MODULE` in a session of its own, its output in `logs/NAME.log`."""
        log = Path(self.folder) / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.add(name, process.pid, log)

    def add(self, name: str, pid: int, log: Path) -> Service:
        """Remember a started process, so that it is ended with the others."""
        service = Service(name, pid, psutil.Process(pid).create_time(), str(log))
        self.services.append(service)
        self.save()
        return service


def start(
    folder: Path, gateway_port: int | None = None, verifier_port: int | None = None, *, verifier: bool = True
) -> Stack:
    """Start Redis and the gateway (awaited), then verifier and worker (not awaited: see `wait_for_verifier`).

    Args:
        folder: for state, logs, store and exchange; made if need be.
        gateway_port, verifier_port: absent: free ones.
        verifier: leave it out for jobs that have the worker start their own.

    Raises:
        StackError: a port is in use, or a service ended; what was started is stopped again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = usable_port("gateway", gateway_port, "EYRIE_GATEWAY_PORT")
    stack = Stack(str(folder), f"http://127.0.0.1:{port}", "", "")
    if verifier:
        stack.verifier_url = f"http://127.0.0.1:{usable_port('verifier', verifier_port, 'EYRIE_VERIFIER_PORT')}"
    try:
        _start_redis(stack, folder)
        gateway = stack.launch("gateway", "services.gateway", stack.environment())
        (folder / "exchange").mkdir(exist_ok=True)
        if verifier:
            stack.launch("verifier", "services.verifier", {**os.environ, **_verifier_environment(stack)})
        stack.launch("worker", "services.worker", stack.environment())
        _wait_for(stack, gateway, f"{stack.gateway_url}/readyz")
    except BaseException:
        stop(stack)
        raise
    return stack


def wait_for_verifier(stack: Stack, waiting: Callable[[float], None] = lambda _: None) -> None:
    """Wait until the verifier answers.

    Args:
        waiting: called with the seconds so far.

    Raises:
        StackError: it, or the worker, has ended.
    """
    services = {service.name: service for service in stack.services}
    _wait_for(stack, services["verifier"], f"{stack.verifier_url}/health", waiting)
    require_alive(services["worker"])


def stop(stack: Stack) -> None:
    """End every process of the stack, the last one started first; harmless when they are gone.

    Ctrl-C and SIGTERM are deaf meanwhile: a second one would leave the rest running.
    """
    with uninterrupted():
        for service in reversed(stack.services):
            end_service(service)
        (Path(stack.folder) / "stack.json").unlink(missing_ok=True)


def load(folder: Path) -> Stack | None:
    """The stack that was started in `folder`, if any.

    Raises:
        StackError: `stack.json` cannot be read.
    """
    path = folder / "stack.json"
    try:
        state = json.loads(path.read_text())
        return Stack(**{**state, "services": [Service(**service) for service in state["services"]]})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StackError(f"{path}, which says what runs, cannot be read ({error}): remove it") from None


def _start_redis(stack: Stack, folder: Path) -> None:
    stack.redis_url = os.environ.get("REDIS_URL", "")
    if stack.redis_url:
        try:
            Redis.from_url(stack.redis_url).ping()
        except (RedisError, ValueError) as error:
            where = stack.redis_url.rsplit("@", 1)[-1]
            raise StackError(f"REDIS_URL names {where}, which does not answer: {error}") from None
        return
    try:
        handle = start_redis(folder / "redis")
    except RedisNotStarted as error:
        raise StackError(str(error)) from None
    stack.redis_url = handle.url
    stack.add("redis", handle.pid, folder / "redis" / "redis.log")


def _verifier_environment(stack: Stack) -> dict[str, str]:
    settings = VerifierSettings.model_validate(
        {
            "model": str(TINY_VERIFIER),
            "served_model_name": TINY_VERIFIER.name,
            "port": int(stack.verifier_url.rsplit(":", 1)[-1]),
            "device": "cpu",
            "mode": VerifierMode.CAPTURE,
            "shared_folder": Path(stack.folder) / "exchange",
        }
    )
    return settings.to_environ()


def _wait_for(stack: Stack, service: Service, url: str, waiting: Callable[[float], None] = lambda _: None) -> None:
    started = time.monotonic()
    while (waited := time.monotonic() - started) < START_TIMEOUT_S:
        require_alive(service)
        try:
            if httpx.get(url, timeout=5, trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        waiting(waited)
        time.sleep(POLL_S)
    raise StackError(f"{service.name} did not answer within {START_TIMEOUT_S:g} s: see {service.log}")


def _up(folder: Path) -> int:
    known = load(folder)
    if known is not None and any(find_process(service) for service in known.services):
        for service in known.services:
            require_alive(service, "; end the others with make down-local, then start again")
        print(f"The services run already: {known.gateway_url} (make down-local ends them)")
        return 0
    gateway_port = asked_port("EYRIE_GATEWAY_PORT", GATEWAY_PORT)
    verifier_port = asked_port("EYRIE_VERIFIER_PORT", VERIFIER_PORT)
    print("Starting Redis, gateway, worker and the tiny verifier ...", flush=True)
    stack = start(folder, gateway_port, verifier_port)
    try:
        wait_for_verifier(stack)
    except BaseException:
        stop(stack)
        raise
    print(
        f"Up. They listen on loopback only and run without an API key: whoever uses this machine can use them.\n"
        f"  gateway   {stack.gateway_url}  (API: {stack.gateway_url}/docs)\n"
        f"  verifier  {stack.verifier_url}\n"
        f"  redis     {stack.redis_url}\n"
        f"  logs      {folder / 'logs'}\n"
        f"Try:  .venv/bin/eyrie submit --preset tiny --prompts assets/prompts/demo.jsonl --watch\n"
        f"End:  make down-local"
    )
    return 0


def _down(folder: Path) -> int:
    stack = load(folder)
    if stack is None:
        print("Nothing runs that make up-local started.")
        return 0
    stop(stack)
    print("Stopped. Datasets, jobs and drafts stay in " + str(folder))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """`up` or `down`."""
    parser = argparse.ArgumentParser(prog="python -m tools.local_stack", description="Eyrie's services, here.")
    parser.add_argument("action", choices=("up", "down"))
    parser.add_argument("--folder", type=Path, default=LOCAL_FOLDER, help="state, logs and data")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return {"up": _up, "down": _down}[options.action](options.folder.absolute())
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted: what was started is stopped again", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
