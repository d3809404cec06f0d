"""Everything that a chaos run breaks: Redis, gateways, workers and a scripted verifier, on loopback, below one folder.

Whatever is started here is known by its process; nothing else is ever touched.
"""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from redis import Redis

from services.worker.supervision import RUN_TOKEN_VARIABLE
from shared.artifact_store import LocalArtifactStore
from tests.support.chaos.journal import JOURNAL_VARIABLE, Journal
from tests.support.chaos.volume import Volume
from tests.support.gateway_process import free_port
from tests.support.stage_runs import write_verifier
from tests.support.verifier_stub import VerifierStub
from tests.support.wait import wait_until
from tools.embedded_redis import RedisHandle, start_redis

ROOT = Path(__file__).resolve().parents[3]
STAGES = "tests.support.chaos_stages"
WITH_VERIFIER = "tests.support.chaos_verifier_stages"
SHORT_TIMES = {"EYRIE_RUN_LEASE_S": "3", "EYRIE_STOP_GRACE_S": "5", "EYRIE_RECONCILE_INTERVAL_S": "0.5"}
END_S = 30.0
START_S = 90.0  # on a machine that has much else to do

Process = subprocess.Popen[bytes]


@dataclass
class ChaosSite:
    """One service, as it would run overnight.

    Attributes:
        times: settings for leases and graces; the short ones unless a run measures the real ones.
        volume: where artifacts lie when the disk shall be full; else they lie in `folder`.
    """

    folder: Path
    stub: VerifierStub
    times: dict[str, str] = field(default_factory=lambda: dict(SHORT_TIMES))
    volume: Volume | None = None
    gateways: list[tuple[str, Process]] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = LocalArtifactStore(self.volume.root if self.volume else self.folder / "store")
        self.journal = Journal(self.folder / "journal")
        self.verifier = write_verifier(self.folder / "tiny-verifier")
        self.redis: RedisHandle = start_redis(self.folder / "redis")
        self.client = Redis.from_url(self.redis.url, decode_responses=True)

    def environment(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        """What every process of the site is started with."""
        return {
            **os.environ,
            **self.times,
            **(self.volume.settings if self.volume else {}),
            "EYRIE_REDIS_URL": self.redis.url,
            "EYRIE_STORE_ROOT": str(self.store.root),
            "EYRIE_EXCHANGE_ROOT": str(self.folder / "exchange"),
            "EYRIE_VERIFIER_URL": self.stub.url,
            JOURNAL_VARIABLE: str(self.journal.folder),
            **(extra or {}),
        }

    def start_gateway(self, extra: dict[str, str] | None = None) -> str:
        """Start a gateway and wait until it answers; returns its address."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        process = self._start("services.gateway", {"EYRIE_GATEWAY_PORT": str(port), **(extra or {})})
        self.gateways.append((url, process))
        wait_until(lambda: _answers(url), START_S, what=f"gateway {url}")
        return url

    def start_worker(self, package: str = STAGES, extra: dict[str, str] | None = None) -> Process:
        """Start a worker whose stages come from a package."""
        worker = self._start("services.worker", {"EYRIE_STAGE_PACKAGE": package, **(extra or {})})
        self.workers.append(worker)
        return worker

    def urls(self) -> list[str]:
        """Addresses of the gateways that live."""
        return [url for url, process in self.gateways if process.poll() is None]

    def live_workers(self) -> list[Process]:
        return [worker for worker in self.workers if worker.poll() is None]

    def stop_redis(self) -> None:
        self.redis.stop()

    def continue_redis(self) -> None:
        """Start Redis again, with the data and at the address that it had."""
        self.redis = start_redis(self.folder / "redis", self.redis.port)

    def run_processes(self) -> list[psutil.Process]:
        """Live processes of this site's stage runs, by the mark in their environment."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                ours = environment.get(JOURNAL_VARIABLE) == str(self.journal.folder)
                if ours and RUN_TOKEN_VARIABLE in environment and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def close(self) -> list[str]:
        """End what was started; returns the command lines of processes that had to be ended by force."""
        for process in self.workers:
            _signal(process, signal.SIGCONT)
            _signal(process, signal.SIGTERM)
        left = [line for process in self.workers for line in _wait(process)]
        for stray in self.run_processes():
            left.append(_command(stray))
            stray.kill()
        for _, gateway in self.gateways:
            _signal(gateway, signal.SIGTERM)
        left += [line for _, gateway in self.gateways for line in _wait(gateway)]
        self.redis.stop()
        return left

    def _start(self, module: str, extra: dict[str, str]) -> Process:
        with (self.folder / "services.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module], cwd=ROOT, env=self.environment(extra), stdout=log, stderr=log
            )


def horse_of(worker: Process) -> psutil.Process | None:
    """The worker's process that runs a job, if it runs one."""
    try:
        children = psutil.Process(worker.pid).children()
    except psutil.NoSuchProcess:
        return None
    return children[0] if children else None


def stage_child_of(worker: Process) -> psutil.Process | None:
    """The process of the stage that a worker runs, if it runs one."""
    horse = horse_of(worker)
    try:
        children = horse.children() if horse else []
    except psutil.NoSuchProcess:
        return None
    return next((child for child in children if "services.worker.stage_main" in _command(child)), None)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


def _signal(process: Process, number: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _wait(process: Process) -> list[str]:
    """Wait for a process to end; if it does not, kill it with all below it, and return their command lines."""
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        stubborn = psutil.Process(process.pid)
        tree = [*stubborn.children(recursive=True), stubborn]
        lines = [_command(one) for one in tree]
        for one in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        return lines
    return []
