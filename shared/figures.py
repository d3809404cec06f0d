"""Running totals of the whole service in Redis: counters and histograms that `/metrics` of every gateway shows.

`eyrie:figures` is a hash: a JSON list `[name, label values..., part]` for each number. `part` is empty for a counter; a
histogram has one for each bucket (its upper bound), and `sum`. An emptied Redis starts them again at zero, which
Prometheus takes for what it is. Names are Prometheus' own, less the `_total` of counters.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from redis import Redis

from shared.errors import StatusReason

FIGURES = "eyrie:figures"
SUM = "sum"
INFINITY = "+Inf"


@dataclass(frozen=True)
class Figure:
    """One counter, or with `bounds` (the upper ends of its buckets) one histogram.

    Attributes:
        known: label values that are shown at zero from the start, so that the first of them counts as an increase.
    """

    name: str
    text: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...] = ()
    known: tuple[tuple[str, ...], ...] = ()

    def buckets(self) -> list[str]:
        """The buckets as Prometheus names them, the last one without an end."""
        return [*(f"{bound:g}" for bound in self.bounds), INFINITY]


REASONS = tuple(reason.value for reason in StatusReason)
JOBS_ENDED = Figure(
    "eyrie_jobs_ended",
    "Jobs that have ended, by status and reason.",
    ("status", "reason"),
    known=(("succeeded", ""), ("cancelled", "stopped_by_user"), *(("failed", reason) for reason in REASONS)),
)
ATTEMPTS_ENDED = Figure(
    "eyrie_attempts_ended",
    "Attempts that ended, by what ended them; empty: they finished their job.",
    ("reason",),
    known=tuple((reason,) for reason in ("", "handed_over", *REASONS)),
)
STAGE_SECONDS = Figure(
    "eyrie_stage_seconds",
    "Seconds of stage runs that succeeded, waiting included; reused stages are not counted again.",
    ("stage",),
    (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 86400),
)
TOKENS = Figure("eyrie_tokens", "Tokens of computed stages: prompts, answers, trained on.", ("stage", "kind"))
SAMPLES = Figure("eyrie_samples", "Rows of computed stages: with answers, with states, trained on.", ("stage",))
ACCEPTANCE = Figure(
    "eyrie_acceptance_length",
    "Acceptance lengths of evaluated drafts on the suite that the gate judges.",
    ("draft", "mode"),
    (1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 4, 5, 6, 8),
)
DRAFTS = Figure(
    "eyrie_drafts_published",
    "Drafts published, by what their gate said.",
    ("gate",),
    known=(("passed",), ("failed",), ("none",)),
)
VERIFIER_SECONDS = Figure(
    "eyrie_verifier_request_seconds",
    "Seconds until the verifier answered a request of a stage, by kind and outcome; each try counts.",
    ("request", "outcome"),
    (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800),
)
ALL = (JOBS_ENDED, ATTEMPTS_ENDED, STAGE_SECONDS, TOKENS, SAMPLES, ACCEPTANCE, DRAFTS, VERIFIER_SECONDS)


@dataclass
class Tally:
    """Increments that are on their way to Redis."""

    amounts: dict[str, float] = field(default_factory=dict)

    def count(self, figure: Figure, labels: Sequence[str], amount: float = 1) -> None:
        """Add to a counter."""
        self._add([figure.name, *labels, ""], amount)

    def observe(self, figure: Figure, labels: Sequence[str], value: float) -> None:
        """Add one value to a histogram."""
        bucket = figure.buckets()[bisect_left(figure.bounds, value)]
        self._add([figure.name, *labels, bucket], 1)
        self._add([figure.name, *labels, SUM], value)

    def send(self, client: Any) -> None:
        """Add everything to the totals, through a client or a pipeline of Redis.

        Raises:
            RedisError: from a client; not everything may have been added then.
        """
        for name, amount in self.amounts.items():
            client.hincrbyfloat(FIGURES, name, amount)

    def _add(self, key: Sequence[str], amount: float) -> None:
        name = json.dumps(key)
        self.amounts[name] = self.amounts.get(name, 0) + amount


@dataclass
class Reading:
    """What Redis has of one figure, by label values: a number under "", or a histogram's buckets and sum."""

    figure: Figure
    values: dict[tuple[str, ...], dict[str, float]] = field(default_factory=dict)

    def cumulative(self, parts: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """A histogram's buckets as Prometheus counts them: each with all below it."""
        total = 0.0
        for bucket in self.figure.buckets():
            total += parts.get(bucket, 0)
            yield bucket, total


def read_figures(redis: Redis, figures: Iterable[Figure] = ALL) -> list[Reading]:
    """The totals, each figure once, whether or not anything was counted yet.

    Raises:
        RedisError
    """
    readings = {figure.name: Reading(figure, {labels: {} for labels in figure.known}) for figure in figures}
    for key, value in sorted(cast("dict[str, str]", redis.hgetall(FIGURES)).items()):
        name, *labels, part = json.loads(key)
        reading = readings.get(name)
        if reading is not None and len(labels) == len(reading.figure.labels):
            reading.values.setdefault(tuple(labels), {})[part] = float(value)
    return list(readings.values())
