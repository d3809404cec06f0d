"""Statistics of token lengths: the numbers that a person would count."""

import random
import statistics
from collections import Counter
from itertools import pairwise

import pytest

from services.gateway.inspection.lengths import MAX_BINS, histogram, quantile

pytestmark = pytest.mark.data


@pytest.mark.parametrize("size", [1, 2, 3, 20, 999])
def test_quantiles_are_values_that_occur(size: int) -> None:
    lengths = [random.Random(size).randint(1, 5000) for _ in range(size)]
    counts = Counter(lengths)
    assert quantile(counts, 0.5) == statistics.median_low(lengths)
    p95 = quantile(counts, 0.95)
    assert sum(length <= p95 for length in lengths) >= 0.95 * size
    assert sum(length < p95 for length in lengths) < 0.95 * size


@pytest.mark.parametrize(
    "lengths", [[7], [0, 1], [1, 12], [3, 262_144], [9, 10, 11], list(range(1, 25)), [99, 100, 205]]
)
def test_every_length_is_in_exactly_one_of_few_bars(lengths: list[int]) -> None:
    bars = histogram(Counter(lengths))
    assert len(bars) <= MAX_BINS
    assert sum(bar.count for bar in bars) == len(lengths)
    for bar in bars:
        assert bar.count == sum(bar.low <= length <= bar.high for length in lengths)
    assert all(left.high + 1 == right.low for left, right in pairwise(bars))
    assert bars[0].count
    assert bars[-1].count
