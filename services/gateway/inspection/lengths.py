"""Statistics of token lengths, from counts of each length: exact, in memory that does not grow with the rows."""

from collections import Counter

from services.gateway.inspection.documents import Bin

MAX_BINS = 12


def quantile(lengths: Counter[int], share: float) -> int:
    """The smallest length that at least `share` of all do not exceed (nearest rank)."""
    wanted = max(1, -(-lengths.total() * round(share * 1000) // 1000))
    seen = 0
    for length in sorted(lengths):
        seen += lengths[length]
        if seen >= wanted:
            return length
    raise ValueError("there are no lengths")


def histogram(lengths: Counter[int]) -> list[Bin]:
    """At most `MAX_BINS` bars of equal, round width; all lengths lie in one, empty bars between them included."""
    width = _width(max(lengths) - min(lengths) + 1)
    counts: Counter[int] = Counter()
    for length, count in lengths.items():
        counts[length // width] += count
    return [
        Bin(low=place * width, high=(place + 1) * width - 1, count=counts[place])
        for place in range(min(counts), max(counts) + 1)
    ]


def _width(span: int) -> int:
    """1, 2 or 5 times a power of ten: the smallest with which `MAX_BINS` bars hold the span wherever it begins."""
    scale = 1
    while True:
        for width in (scale, 2 * scale, 5 * scale):
            if (span - 1 + width - 1) // width + 1 <= MAX_BINS:
                return width
        scale *= 10
