"""Rows to render: the same ones in any order, from every source, in bounded memory."""

import json
import random
from collections import Counter

import pytest

from services.gateway.inspection.sampling import RowSampler
from shared.data.row_reader import AcceptedRow

pytestmark = pytest.mark.data


def rows(sizes: dict[str, int], text: str = "hello") -> list[AcceptedRow]:
    content = {"messages": [{"role": "user", "content": text}]}
    return [
        AcceptedRow(source, line, f"{source}-{line}", content, json.dumps(content), None, Counter())
        for source, size in sizes.items()
        for line in range(1, size + 1)
    ]


def choose(given: list[AcceptedRow], size: int, seed: int = 0, max_bytes: int = 1 << 20) -> list[str]:
    sampler = RowSampler(size, seed, max_bytes)
    for row in given:
        sampler.add(row)
    return [row.id for row in sampler.chosen(sampler.candidates(), Counter(row.source for row in given))]


def test_order_does_not_matter_and_the_seed_does() -> None:
    given = rows({"a": 300})
    shuffled = random.Random(1).sample(given, len(given))
    assert choose(given, 20) == choose(shuffled, 20)
    assert len(choose(given, 20)) == 20
    assert set(choose(given, 20)) != set(choose(given, 20, seed=1))


def test_every_source_is_covered_and_has_its_share() -> None:
    given = rows({"large": 900, "small": 100, "tiny": 1})
    chosen = choose(given, 50)
    counts = Counter(name.split("-")[0] for name in chosen)
    assert {name.split("-")[0] for name in chosen[:3]} == {"large", "small", "tiny"}
    assert abs(counts["large"] - 45) <= 1
    assert abs(counts["small"] - 5) <= 1


def test_all_are_chosen_where_there_are_few() -> None:
    assert sorted(choose(rows({"a": 3, "b": 2}), 50)) == ["a-1", "a-2", "a-3", "b-1", "b-2"]
    assert choose(rows({"a": 3}), 0) == []
    assert choose([], 5) == []


def test_rows_that_are_not_used_in_the_end_are_not_chosen() -> None:
    sampler = RowSampler(10, 0)
    for row in rows({"a": 4}):
        sampler.add(row)
    chosen = sampler.chosen(sampler.candidates() - {("a", 2), ("a", 3)}, Counter(a=2))
    assert sorted(row.line for row in chosen) == [1, 4]


def test_long_rows_make_the_sample_smaller_and_not_the_memory_larger() -> None:
    given = rows({"a": 200, "b": 200}, text="x" * 1000)
    chosen = choose(given, 100, max_bytes=20_000)
    assert 2 <= len(chosen) <= 20
    assert {name.split("-")[0] for name in chosen} == {"a", "b"}
    assert set(chosen) <= set(choose(given, 100))
