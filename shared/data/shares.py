"""How many rows each source of a dataset gives: to the job by its weight, to the validation side by its size."""

from collections.abc import Sequence
from fractions import Fraction


def largest_remainder(total: int, weights: Sequence[float | int]) -> list[int]:
    """Share out `total` in proportion to `weights`, exactly; what is left goes to the largest remainders."""
    whole = sum(map(Fraction, weights))
    exact = [total * Fraction(weight) / whole for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return shares


def quotas(available: Sequence[int], weights: Sequence[float | int], limit: int | None) -> list[int]:
    """Rows to take from each source, so that their numbers stand to each other as the weights do.

    Args:
        available: rows that each source has.
        limit: how many to take in all; absent, or where the sources cannot supply so many: the most at which no
            source would have to give more than it has.
    """
    whole = sum(map(Fraction, weights))
    pairs = zip(available, weights, strict=True)
    most = min(int(rows * whole / Fraction(weight)) for rows, weight in pairs)
    return largest_remainder(most if limit is None else min(limit, most), weights)


def validation_shares(sizes: Sequence[int], val_ratio: float) -> list[int]:
    """Conversations to hold out of each source: `round(n * val_ratio)` of all `n`, at least one and not all.

    Each source has its share, and a source of two or more stands on both sides where there is room.
    """
    n = sum(sizes)
    total = min(max(1, round(n * val_ratio)), max(0, n - 1))
    shares = largest_remainder(total, sizes)
    exact = [total * size / n for size in sizes]
    _give_each_one(shares, exact, [size >= 2 for size in sizes])
    rest = [size - share for size, share in zip(sizes, shares, strict=True)]
    exact_rest = [size - share for size, share in zip(sizes, exact, strict=True)]
    _give_each_one(rest, exact_rest, [size >= 1 for size in sizes])
    return [size - left for size, left in zip(sizes, rest, strict=True)]


def _give_each_one(shares: list[int], exact: list[float], wanted: list[bool]) -> None:
    """Raise empty shares to one, at the cost of those that have most above what is theirs."""
    for i, want in enumerate(wanted):
        if want and not shares[i]:
            givers = [j for j, share in enumerate(shares) if share > 1]
            if not givers:
                return
            shares[max(givers, key=lambda j: shares[j] - exact[j])] -= 1
            shares[i] = 1
