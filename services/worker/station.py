"""One worker's place in the fleet: it says that the worker lives and what it has, and keeps its machine in order.

`beat` is called every few seconds, while the worker waits and while its work horse runs. It holds no job and no lease.
"""

import logging
import os
import socket

from redis.exceptions import RedisError

from services.worker.gpu_locks import GpuLocks
from services.worker.gpus import LocalGpus
from services.worker.integrations import installed_loggers
from services.worker.strays import Strays
from services.worker.supervision import end_worker_tree
from services.worker.worker_figures import WorkerFigures
from shared.fleet import Fleet
from shared.gpu_leases import GpuLeases
from shared.job_store import JobStore
from shared.schemas.fleet import WorkerRecord
from shared.schemas.job import now
from shared.settings import Settings

log = logging.getLogger(__name__)
BEAT_S = 5
LIFE_S = 3 * BEAT_S


class Station:
    """A worker's entry in the fleet, and its sweeps of this machine.

    Raises:
        CapacityError: the setting names a GPU that is not there.
    """

    def __init__(
        self, worker_id: str, version: str, jobs: JobStore, settings: Settings, figures: WorkerFigures
    ) -> None:
        self.worker_id, self.version, self.settings, self.figures = worker_id, version, settings, figures
        self.gpus = LocalGpus(settings.gpus, GpuLocks(settings.gpu_lock_folder, jobs.artifacts.root))
        self.fleet, self.leases = Fleet(jobs.redis), GpuLeases(jobs.redis)
        self.strays = Strays(jobs, settings.run_lease_s)
        self.job_id: str | None = None
        self.started_at = now()

    def beat(self) -> None:
        """Enter the worker again, end dead runs' processes, and free the GPUs that they had. Redis may be away."""
        try:
            record = self._record()
            self.fleet.register(record, LIFE_S + self.settings.run_lease_s)
            self.figures.beat(record)
            self.strays.sweep()
            self.gpus.end_quarantines(self.leases)
        except RedisError as error:
            log.warning("the fleet does not hear of this worker: %s", error)

    def begin(self, job_id: str | None) -> None:
        """A work horse is about to start with a job."""
        self.job_id = job_id
        self.figures.begin()
        self.beat()

    def end(self) -> None:
        """The work horse is gone, however it went: end what it left, which is nothing unless it was killed."""
        self.job_id = None
        self.figures.end()
        end_worker_tree(self.worker_id, self.settings.stop_grace_s)

    def sign_off(self) -> None:
        """The worker ends."""
        try:
            self.fleet.sign_off(self.worker_id)
        except RedisError:
            log.info("the worker's entry in the fleet is left to expire")

    def _record(self) -> WorkerRecord:
        return WorkerRecord(
            id=self.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self.version,
            gpus=self.gpus.infos,
            loggers=installed_loggers(),
            job_id=self.job_id,
            started_at=self.started_at,
            seen_at=now(),
        )
