"""A site of one test: a real Redis, real workers, a scripted verifier, and job records made without a gateway."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from redis import Redis

from services.worker.pipeline import JobRun
from services.worker.run_control import RunControl
from services.worker.supervision import RUN_TOKEN_VARIABLE
from shared import attempts
from shared.artifact_store import LocalArtifactStore, file_sha256
from shared.ids import new_id
from shared.job_store import JobStore
from shared.queue import JobQueue
from shared.schemas.job import JobRecord, JobStatus, Stage
from shared.schemas.manifest import Manifest
from shared.settings import Settings
from tests.support.stage_runs import job_spec, prompts, write_dataset, write_rows, write_verifier
from tests.support.verifier_stub import VerifierStub
from tests.support.wait import wait_until
from tools.embedded_redis import RedisHandle, start_redis

ROOT = Path(__file__).resolve().parents[2]
LIGHT = "tests.support.light_stages"  # no stage is real but publish
GENERATE = "tests.support.generate_stages"  # prepare and generate too
DATA = "tests.support.data_stages"  # capture and vocab too
JOB_TIMEOUT_S = 90.0


@dataclass
class Site:
    """Everything that a job needs, below one folder."""

    folder: Path
    stub: VerifierStub
    redis: RedisHandle
    workers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = LocalArtifactStore(self.folder / "store")
        self.exchange = self.folder / "exchange"
        self.verifier = write_verifier(self.folder / "tiny-verifier")
        client = Redis.from_url(self.redis.url, decode_responses=True)
        self.jobs, self.queue = JobStore(client, self.store), JobQueue(self.redis.url)

    def start_worker(
        self, package: str = LIGHT, gpus: str = "", code: tuple[str, str] = ("-m", "services.worker"), **changes: str
    ) -> "subprocess.Popen[bytes]":
        """Start a worker whose stages come from a package; `changes` are further variables of its environment."""
        environment = {
            **os.environ,
            "EYRIE_REDIS_URL": self.redis.url,
            "EYRIE_STORE_ROOT": str(self.store.root),
            "EYRIE_EXCHANGE_ROOT": str(self.exchange),
            "EYRIE_STAGE_PACKAGE": package,
            "EYRIE_RUN_LEASE_S": "3",
            "EYRIE_STOP_GRACE_S": "5",
            "EYRIE_RETRY_WAIT_S": "0",
            "EYRIE_GPUS": gpus,
            "EYRIE_GPU_LOCK_FOLDER": str(self.folder / "gpu-locks"),
            **changes,
        }
        with (self.folder / "workers.log").open("ab") as log:
            worker = subprocess.Popen([sys.executable, *code], cwd=ROOT, env=environment, stdout=log, stderr=log)
        self.workers.append(worker)
        return worker

    def dataset(self, rows: list[Any]) -> str:
        """Enter a dataset as the gateway does; equal rows are an equal dataset."""
        dataset_id = new_id("ds")
        path = write_rows(self.folder / f"{dataset_id}.jsonl", rows)
        write_dataset(self.store.folder(f"datasets/{dataset_id}"), path)
        return dataset_id

    def submit(self, rows: list[Any] | None = None, **changes: Any) -> str:
        """Make a job and put it in line; `changes` are merged into its document."""
        data = {"dataset": self.dataset(rows or prompts(10)), **changes.pop("data", {})}
        spec = job_spec(self.verifier, data=data, **{"verifier": {"endpoint": self.stub.url}, **changes})
        record = self.jobs.create(spec)
        self.queue.enqueue(record.id, record.attempt)
        return record.id

    def stop_job(self, job_id: str, status: JobStatus) -> None:
        """Ask a running job to cancel or pause, as the gateway does."""
        self.jobs.update(job_id, lambda record: setattr(record, "status", status))

    def replace_lost_attempt(self, job_id: str) -> None:
        """What the reconciler does for a running job whose worker fell silent."""
        wait_until(lambda: self.jobs.run_token(job_id) is None, 20, what="the lost run's lease lapses")
        record = self.jobs.update(job_id, lambda record: attempts.lose(record, Settings()))
        self.queue.enqueue(job_id, record.attempt)

    def run_here(self, job_id: str, lease_s: int = 3) -> JobRecord:
        """Take a job as a worker does, in this process; returns its record when the attempt is over."""
        settings = Settings(exchange_root=self.exchange, gpu_lock_folder=self.folder / "gpu-locks")
        settings = settings.model_copy(update={"run_lease_s": lease_s})  # may be shorter than people may set it
        attempt = self.jobs.get(job_id).attempt
        self.queue.remove(job_id, attempt)
        control = RunControl(self.jobs, job_id, new_id("run"), lease_s, threading.Event())
        JobRun(self.jobs, self.queue, settings, control, attempt, "here").run()
        return self.jobs.get(job_id)

    def restart_redis(self) -> None:
        """End Redis and start it again with what it had."""
        self.redis.stop()
        self.redis = start_redis(self.folder / "redis", self.redis.port)

    def wait_for(self, job_id: str, status: JobStatus) -> JobRecord:
        """Wait until a job has a status; another final one is a failure at once."""
        final = {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED}

        def look() -> JobRecord | None:
            record = self.jobs.get(job_id)
            assert record.status == status or record.status not in final, f"{record.status}: {record.error}"
            return record if record.status == status else None

        return wait_until(look, JOB_TIMEOUT_S, what=f"job is {status}")

    def manifest(self, record: JobRecord, stage: Stage) -> Manifest:
        """A finished stage's manifest."""
        key = record.stage(stage).manifest
        assert key is not None, stage
        return Manifest.model_validate_json(self.store.read(key))

    def half_made(self) -> list[str]:
        """Files of attempts that are in no manifest and that no later attempt can use."""
        named = set()
        for path in self.store.root.glob("stages/*/*/manifest.json"):
            manifest = Manifest.model_validate_json(path.read_bytes())
            named |= {f"{manifest.root}/{file.path}" for file in manifest.files}
        outputs = self.store.root.glob("stages/*/*/attempts/*/out/**/*")
        found = {path.relative_to(self.store.root).as_posix() for path in outputs if path.is_file()}
        return sorted(found - named)

    def processes(self) -> list[psutil.Process]:
        """Live processes of this site's runs."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
            except (psutil.Error, OSError):
                continue
            ours = environment.get("EYRIE_STORE_ROOT") == str(self.store.root)
            if ours and RUN_TOKEN_VARIABLE in environment and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def close(self) -> None:
        """End the workers, and whatever else is left."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            try:
                worker.wait(20)
            except subprocess.TimeoutExpired:
                for process in [*psutil.Process(worker.pid).children(recursive=True), worker]:
                    process.kill()
                worker.wait(10)
        for process in self.processes():
            process.kill()
        self.redis.stop()


def assert_whole(site: Site, record: JobRecord) -> None:
    """Every stage of a job has a manifest whose files are there, byte for byte."""
    for stage in Stage:
        manifest = site.manifest(record, stage)
        assert manifest.files, stage
        for entry in manifest.files:
            path = site.store.path(f"{manifest.root}/{entry.path}")
            assert (path.stat().st_size, file_sha256(path)) == (entry.size, entry.sha256)
