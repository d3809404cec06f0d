"""The worker: an RQ worker that takes one function only, and runs each job in a forked work horse.

Run it with `python -m services.worker`. Its process imports no torch; stages do, in their own processes. SIGTERM lets
the running stage save what it has, hands the job to another worker, and ends this one. With `EYRIE_WORKER_BURST` it
ends after one job, or at once when none waits.
"""

import contextlib
import importlib.metadata
import logging
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.exceptions import StopRequested
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from services.worker.pipeline import JobRun
from services.worker.run_control import RunControl
from services.worker.station import BEAT_S, Station
from services.worker.supervision import PARENT_VARIABLE, STORE_VARIABLE, WORKER_VARIABLE, die_with_parent
from services.worker.worker_figures import WorkerFigures, served
from shared.errors import EyrieError, UserError
from shared.ids import new_id
from shared.job_store import JobNotFound, JobStore
from shared.logs import log_context, set_up_logging, without_secrets
from shared.queue import ENTRY_POINT, JobQueue
from shared.settings import Settings, get_settings
from shared.stores import open_store

log = logging.getLogger(__name__)
WORKER_TTL_S = 45
MAINTENANCE_INTERVAL_S = 30
BAD_INPUT = 2
VERSION = importlib.metadata.version("eyrie")
REDIS_RETRY_S = 1.0
REDIS_TIMEOUT_S = 10.0  # a Redis that hangs must not hang the run


class Message(Job):
    """A message in the queue that can run nothing but `run_job`: no other function, callback or webhook.

    Whoever can write to Redis can name any of them.
    """

    success_callback = failure_callback = stopped_callback = None

    def perform(self) -> Any:
        if self.func_name != ENTRY_POINT:
            raise PermissionError(f"this worker runs {ENTRY_POINT} only, not {self.func_name}")
        return super().perform()

    def send_webhooks(self, status: str | JobStatus, *, exc_string: str | None = None) -> None:
        """Send none."""


class JobWorker(Worker):
    """RQ's worker with a place in the fleet. It passes SIGTERM on to its job, and keeps it while Redis is away.

    RQ stops an idle worker by an exception of its signal handler. Python drops that where it interrupts a destructor,
    and a job that is about to be forked has no process yet that SIGTERM could be passed on to: so that a worker was
    told to stop is also kept, and looked at on the way.
    """

    station: Station
    told_to_stop = False

    @property
    def dequeue_timeout(self) -> int:
        return BEAT_S

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        super().heartbeat(timeout, pipeline)
        if self.is_horse:
            return
        self.station.beat()
        if self.told_to_stop and not self.horse_pid:
            raise StopRequested

    def execute_job(self, job: Job, queue: Queue) -> None:
        self.station.begin(str(job.args[0]) if job.args else None)
        try:
            super().execute_job(job, queue)
        finally:
            if not self.is_horse:
                self.station.end()

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """Fork with SIGTERM held back: Python forgets one that comes before the new process first runs."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            super().fork_work_horse(job, queue)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self.told_to_stop:
            self._stop_horse()

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # From here on it ends this process, until the job handles it; the reconciler sends the job's message again.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        super().main_work_horse(job, queue)

    def handle_warm_shutdown_request(self) -> None:
        self.told_to_stop = True
        super().handle_warm_shutdown_request()  # type: ignore[no-untyped-call]
        self._stop_horse()

    def maintain_heartbeats(self, job: Job, execution: Execution) -> None:
        """Keep RQ's own books alive; the run needs none of them, and goes on while Redis is away."""
        try:
            super().maintain_heartbeats(job, execution)
        except RedisError as error:
            log.warning("Redis does not answer, the job goes on: %s", error)

    def _stop_horse(self) -> None:
        if self.horse_pid:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.horse_pid, signal.SIGTERM)

    def close(self) -> None:
        """Wait for a job that RQ has turned its back on, and end the thread that listens to RQ's commands."""
        if self.horse_pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.horse_pid, 0)
        if not self.told_to_stop:
            with contextlib.suppress(RedisError):
                self.unsubscribe()  # type: ignore[no-untyped-call]


def run_job(job_id: str, attempt: int) -> None:
    """What the queue calls, in the work horse: one attempt at a job."""
    settings = get_settings()
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    die_with_parent()  # a killed worker's job is handed over like a stopped one's
    jobs = _job_store(settings)
    control = RunControl(jobs, job_id, new_id("run"), settings.run_lease_s, stopping)
    with log_context(job=job_id, attempt=attempt):
        try:
            JobRun(jobs, _queue(settings), settings, control, attempt, socket.gethostname()).run()
        except JobNotFound:
            log.warning("job %s: there is no such record; its message is dropped", job_id)


def main() -> int:
    """Work until told to stop; a Redis that goes away is waited for."""
    try:
        settings = get_settings()
        set_up_logging("worker", settings.log_format)
        queue = JobQueue(settings.redis_url)
        queue.redis.ping()
    except UserError as error:
        print(f"worker: {error}", file=sys.stderr)
        return BAD_INPUT
    except RedisError as error:
        print(f"worker: Redis does not answer at {without_secrets(settings.redis_url)}: {error}", file=sys.stderr)
        return 1
    figures = WorkerFigures(settings)
    try:
        with served(figures, settings):
            while not _work(queue, settings, figures):
                log.warning("Redis went away; waiting for it")
                time.sleep(REDIS_RETRY_S)
    except EyrieError as error:
        print(f"worker: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _work(queue: JobQueue, settings: Settings, figures: WorkerFigures) -> bool:
    """Work on what comes; True when there is nothing more to do here, False when Redis went away (and no job runs here
    any more).

    Raises:
        EyrieError: the settings name what is not there.
    """
    try:
        worker = JobWorker(
            [queue.queue],
            connection=queue.redis,
            job_class=Message,
            serializer=JSONSerializer,
            worker_ttl=WORKER_TTL_S,
            maintenance_interval=MAINTENANCE_INTERVAL_S,
            job_monitoring_interval=BEAT_S,
        )
    except RedisError as error:
        log.warning("Redis does not answer: %s", error)
        return False
    worker.station = Station(worker.name, VERSION, _job_store(settings), settings, figures)
    os.environ |= {
        STORE_VARIABLE: str(settings.store_root.absolute()),
        WORKER_VARIABLE: worker.name,
        PARENT_VARIABLE: str(os.getpid()),  # of the work horses
    }
    burst = settings.worker_burst
    try:
        worker.work(burst=burst, max_jobs=1 if burst else None, logging_level="WARNING")
    except RedisError as error:
        log.warning("Redis does not answer: %s", error)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # RQ's handler would speak for a worker that works no more
    worker.close()
    worker.station.sign_off()
    return worker.told_to_stop or burst


def _job_store(settings: Settings) -> JobStore:
    redis = Redis.from_url(settings.redis_url, decode_responses=True, socket_timeout=REDIS_TIMEOUT_S)
    return JobStore(redis, open_store(settings))


def _queue(settings: Settings) -> JobQueue:
    return JobQueue(settings.redis_url, Redis.from_url(settings.redis_url, socket_timeout=REDIS_TIMEOUT_S))


if __name__ == "__main__":
    sys.exit(main())
