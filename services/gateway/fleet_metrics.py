"""The fleet's part of `/metrics`: workers, GPUs and their leases, managed verifiers, leases of the service itself."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.gateway import reconciler
from services.gateway.webhooks import deliverer
from shared.errors import ArtifactStoreError
from shared.fleet import Fleet
from shared.gpu_leases import GpuLeases
from shared.job_store import JobStore
from shared.live_jobs import run_key
from shared.schemas.fleet import GpuStatus, VerifierStatus
from shared.schemas.job import JobStatus

OWNED = (JobStatus.RUNNING, JobStatus.PAUSING, JobStatus.CANCELLING)
SERVICE_LEASES = {"reconciler": reconciler.LEASE_KEY, "webhooks": deliverer.LEASE_KEY}


class FleetCollector(Collector):
    """Who works, on what, and what is leased.

    Raises:
        RedisError: from `collect`, when Redis cannot be asked.
    """

    def __init__(self, jobs: JobStore) -> None:
        self.jobs, self.fleet, self.gpu_leases = jobs, Fleet(jobs.redis), GpuLeases(jobs.redis)

    def collect(self) -> Iterator[Metric]:
        """Read the figures."""
        workers = ["busy" if worker.job_id else "idle" for worker in self.fleet.workers()]
        yield _by("eyrie_workers", "Workers that live, by what they do.", "state", workers, ("busy", "idle"))
        gpus = self.fleet.gpus()
        statuses = [gpu.status.value for gpu in gpus]
        yield _by("eyrie_gpus", "GPUs of live workers, by status.", "status", statuses, list(GpuStatus))
        holders = [gpu.holder.stage for gpu in gpus if gpu.holder is not None and gpu.status == GpuStatus.LEASED]
        yield _by("eyrie_gpu_leases", "Leased GPUs, by what they are leased for.", "stage", holders)
        text = "Runs that stand in line for GPUs."
        yield GaugeMetricFamily("eyrie_gpu_waits", text, value=self.gpu_leases.waiting())
        yield GaugeMetricFamily("eyrie_run_leases", "Jobs whose run holds its lease.", value=self._run_leases())
        yield self._service_leases()
        verifiers = [verifier.status.value for verifier in self.fleet.verifiers()]
        text = "Verifiers that workers have started, by status."
        yield _by("eyrie_managed_verifiers", text, "status", verifiers, list(VerifierStatus))
        yield from self._store()

    def _run_leases(self) -> int:
        keys = [run_key(job_id) for job_id in self.jobs.ids_in(*OWNED)]
        return int(self.jobs.redis.exists(*keys)) if keys else 0

    def _service_leases(self) -> Metric:
        text = "Whether some gateway holds the lease of a part of the service that one gateway does for all."
        gauge = GaugeMetricFamily("eyrie_service_lease", text, labels=["part"])
        for part, key in SERVICE_LEASES.items():
            gauge.add_metric([part], int(self.jobs.redis.exists(key)))
        return gauge

    def _store(self) -> Iterator[Metric]:
        try:
            sizes = {"free": self.jobs.artifacts.free_bytes(), "total": self.jobs.artifacts.total_bytes()}
        except ArtifactStoreError:
            return  # it is away, or nothing was written yet; the figures of Redis are worth having all the same
        gauge = GaugeMetricFamily("eyrie_store_bytes", "Bytes of the artifact store's volume.", labels=["kind"])
        for kind, size in sizes.items():
            gauge.add_metric([kind], size)
        yield gauge


def _by(name: str, text: str, label: str, found: Iterable[str], always: Iterable[str] = ()) -> Metric:
    """A gauge that counts equal values; those of `always` are shown at zero, too."""
    gauge = GaugeMetricFamily(name, text, labels=[label])
    counted = {str(value): 0 for value in always} | Counter(found)
    for value, count in sorted(counted.items()):
        gauge.add_metric([value], count)
    return gauge
