"""What `/metrics` shows, in Prometheus' text format: figures of the whole service, read from Redis when asked for.

Every gateway shows the same. Nothing is kept here, and scraping changes nothing.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.gateway.fleet_metrics import FleetCollector
from services.gateway.waiting import oldest_waiting_s
from shared.figures import SUM, Reading, read_figures
from shared.job_store import UNKEPT, JobStore
from shared.queue import JobQueue
from shared.schemas.job import JobStatus
from shared.stage_counts import read_counts

SCAN = 1000


class ServiceCollector(Collector):
    """Jobs by status, how long they wait, and the running totals of stages, drafts and the verifier.

    Raises:
        RedisError: from `collect`, when Redis cannot be asked.
    """

    def __init__(self, jobs: JobStore, queue: JobQueue) -> None:
        self.jobs, self.queue = jobs, queue

    def collect(self) -> Iterator[Metric]:
        """Read the figures."""
        yield self._jobs()
        yield from self._queue()
        yield self._items()
        for reading in read_figures(self.jobs.redis):
            yield _histogram(reading) if reading.figure.bounds else _counter(reading)

    def _jobs(self) -> Metric:
        gauge = GaugeMetricFamily("eyrie_jobs", "Jobs by status.", labels=["status"])
        found = Counter({status.value: 0 for status in JobStatus})
        ids = self.jobs.list_ids()
        for start in range(0, len(ids), SCAN):
            found.update(labels.status for labels in self.jobs.labels(ids[start : start + SCAN]) if labels.status)
        for status, count in found.items():
            gauge.add_metric([status], count)
        return gauge

    def _queue(self) -> Iterator[Metric]:
        text = "Seconds since the job that has waited longest was put in line; 0 when none waits."
        yield GaugeMetricFamily("eyrie_queue_age_seconds", text, value=oldest_waiting_s(self.jobs))
        text = "Messages in the queue: attempts that no worker has taken yet."
        yield GaugeMetricFamily("eyrie_queue_messages", text, value=self.queue.waiting())
        text = "Jobs whose latest version is in Redis only, since the artifact store could not take it."
        yield GaugeMetricFamily("eyrie_jobs_unkept", text, value=float(self.jobs.redis.zcard(UNKEPT)))

    def _items(self) -> Metric:
        text = "Items that stages took in, by what became of them; reused stages are not counted again."
        labels = ["stage", "unit", "outcome", "reason"]
        counter = CounterMetricFamily("eyrie_stage_items", text, labels=labels)
        for item in read_counts(self.jobs.redis):
            counter.add_metric([item.stage, item.unit, item.outcome, item.reason], item.count)
        return counter


def service_registry(jobs: JobStore, queue: JobQueue) -> CollectorRegistry:
    """A registry that holds nothing but the service's own figures."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(jobs, queue))
    registry.register(FleetCollector(jobs))
    return registry


def _counter(reading: Reading) -> Metric:
    figure = reading.figure
    counter = CounterMetricFamily(figure.name, figure.text, labels=figure.labels)
    for labels, parts in reading.values.items():
        counter.add_metric(labels, parts.get("", 0))
    return counter


def _histogram(reading: Reading) -> Metric:
    figure = reading.figure
    histogram = HistogramMetricFamily(figure.name, figure.text, labels=figure.labels)
    for labels, parts in reading.values.items():
        histogram.add_metric(labels, buckets=list(reading.cumulative(parts)), sum_value=parts.get(SUM, 0))
    return histogram
