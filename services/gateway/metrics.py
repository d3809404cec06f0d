"""What `/metrics` shows, in Prometheus' text format: figures of the whole service, read from Redis when asked for.

Every gateway shows the same. Nothing is kept here, and scraping changes nothing.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.job_store import JobStore
from shared.schemas.job import JobStatus
from shared.stage_counts import read_counts

SCAN = 1000


class ServiceCollector(Collector):
    """Jobs by status, and items by stage and outcome.

    Raises:
        RedisError: from `collect`, when Redis cannot be asked.
    """

    def __init__(self, jobs: JobStore) -> None:
        self.jobs = jobs

    def collect(self) -> Iterator[Metric]:
        """Read the figures."""
        yield self._jobs()
        yield self._items()

    def _jobs(self) -> Metric:
        gauge = GaugeMetricFamily("eyrie_jobs", "Jobs by status.", labels=["status"])
        found = Counter({status.value: 0 for status in JobStatus})
        ids = self.jobs.list_ids()
        for start in range(0, len(ids), SCAN):
            found.update(labels.status for labels in self.jobs.labels(ids[start : start + SCAN]) if labels.status)
        for status, count in found.items():
            gauge.add_metric([status], count)
        return gauge

    def _items(self) -> Metric:
        text = "Items that stages took in, by what became of them; reused stages are not counted again."
        labels = ["stage", "unit", "outcome", "reason"]
        counter = CounterMetricFamily("eyrie_stage_items", text, labels=labels)
        for item in read_counts(self.jobs.redis):
            counter.add_metric([item.stage, item.unit, item.outcome, item.reason], item.count)
        return counter


def service_registry(jobs: JobStore) -> CollectorRegistry:
    """A registry that holds nothing but the service's own figures."""
    registry = CollectorRegistry()
    registry.register(ServiceCollector(jobs))
    return registry
