"""A worker's own `/metrics`: what its machine and its process are doing. The service's figures are the gateway's.

The server is a thread of the worker's process and reads memory only: no Redis and no driver, whose locks a work horse
that is forked meanwhile would inherit. What has to be asked is asked at each beat, by the worker itself.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.worker import nvml
from services.worker.gpu_locks import is_real
from shared.errors import UserError
from shared.schemas.fleet import WorkerRecord
from shared.settings import Settings

STOP_S = 5.0


class WorkerFigures(Collector):
    """What one worker knows of itself; its station tells it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._record: WorkerRecord | None = None
        self._loads: dict[str, tuple[int, float | None]] = {}
        self._taken, self._busy_s = 0, 0.0
        self._busy_since: float | None = None
        self._beat_at = time.monotonic()

    def beat(self, record: WorkerRecord) -> None:
        """The fleet has heard of the worker just now."""
        self._record, self._beat_at = record, time.monotonic()
        if self.settings.worker_metrics_port is not None:
            loads = {gpu.id: nvml.gpu_load(gpu.id) for gpu in record.gpus if is_real(gpu.id)}
            self._loads = {gpu: load for gpu, load in loads.items() if load is not None}

    def begin(self) -> None:
        """A work horse starts."""
        self._taken += 1
        self._busy_since = time.monotonic()

    def end(self) -> None:
        """It is gone."""
        self._busy_s, self._busy_since = self._busy_now(), None

    def collect(self) -> Iterator[Metric]:
        """The figures of this moment."""
        if (record := self._record) is not None:
            info = GaugeMetricFamily("eyrie_worker_info", "This worker.", labels=["worker", "host", "version"])
            info.add_metric([record.id, record.host, record.version], 1)
            yield info
        yield GaugeMetricFamily("eyrie_worker_busy", "Whether a job runs here.", value=self._busy_since is not None)
        yield CounterMetricFamily("eyrie_worker_messages", "Messages taken out of the queue.", value=self._taken)
        yield CounterMetricFamily("eyrie_worker_busy_seconds", "Seconds with a job.", value=self._busy_now())
        age = time.monotonic() - self._beat_at
        yield GaugeMetricFamily("eyrie_worker_beat_age_seconds", "Seconds since Redis heard of this worker.", value=age)
        yield self._room()
        yield from self._gpus(record)

    def _busy_now(self) -> float:
        since = self._busy_since
        return self._busy_s + (time.monotonic() - since if since is not None else 0.0)

    def _room(self) -> Metric:
        gauge = GaugeMetricFamily("eyrie_worker_free_bytes", "Bytes free on a folder's volume.", labels=["folder"])
        for name, folder in (("store", self.settings.store_root), ("exchange", self.settings.exchange_root)):
            if folder.is_dir():
                gauge.add_metric([name], shutil.disk_usage(folder).free)
        return gauge

    def _gpus(self, record: WorkerRecord | None) -> Iterator[Metric]:
        memory = GaugeMetricFamily("eyrie_worker_gpu_memory_bytes", "Memory of a GPU.", labels=["gpu", "name"])
        for gpu in record.gpus if record is not None else ():
            if gpu.memory_bytes is not None:
                memory.add_metric([gpu.id, gpu.name], gpu.memory_bytes)
        used = GaugeMetricFamily("eyrie_worker_gpu_memory_used_bytes", "Of it in use, by anybody.", labels=["gpu"])
        busy = GaugeMetricFamily("eyrie_worker_gpu_busy_ratio", "Part of the time that it computed.", labels=["gpu"])
        for name, (used_bytes, ratio) in self._loads.items():
            used.add_metric([name], used_bytes)
            if ratio is not None:
                busy.add_metric([name], ratio)
        yield from (memory, used, busy)


def worker_registry(figures: WorkerFigures) -> CollectorRegistry:
    """A registry with the worker's figures and those of its process."""
    registry = CollectorRegistry()
    registry.register(figures)
    ProcessCollector(registry=registry)
    return registry


@contextmanager
def served(figures: WorkerFigures, settings: Settings) -> Iterator[None]:
    """Serve `/metrics` for the length of a block, if the settings ask for it.

    Raises:
        UserError: the port cannot be listened on.
    """
    host, port = settings.worker_metrics_host, settings.worker_metrics_port
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, host, worker_registry(figures))
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            where="EYRIE_WORKER_METRICS_PORT",
            hint="another worker may have it: give each its own",
        ) from None
    # A work horse that outlives its worker must not keep the port from the next one.
    os.register_at_fork(after_in_child=server.socket.close)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(STOP_S)
