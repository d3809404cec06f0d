"""Which rows a job takes and holds out: exact numbers, whole conversations, each source with its share."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.data.mixture import chosen, hold_out, take_quotas
from shared.data.refusal import RowRejected
from shared.data.row_index import RowIndex
from shared.data.row_reader import AcceptedRow
from shared.data.shares import largest_remainder, quotas, validation_shares
from shared.errors import UserError

pytestmark = pytest.mark.data
NUMBER = itertools.count()


@pytest.fixture
def choose(tmp_path):
    """Enter rows (source, identity, conversation), choose, and say of each: source, id, taken, held out."""

    def run(rows, val_ratio=0.2, seed=0, weights=None, limit=None, deduplicate=True):
        sources = list(dict.fromkeys(source for source, *_ in rows))
        path = tmp_path / f"{next(NUMBER)}.sqlite"
        with RowIndex(path, sources, deduplicate=deduplicate, limit=None if weights else limit) as index:
            for line, (source, identity, *conversation) in enumerate(rows, 1):
                row = AcceptedRow(
                    source, line, identity, {}, "{}", conversation[0] if conversation else None, Counter()
                )
                try:
                    index.add(row)
                except RowRejected as refusal:
                    index.reject(source, line, refusal)
            if weights:
                take_quotas(index, weights, limit, seed)
            hold_out(index, val_ratio, seed)
            run.reasons = index.reasons()
            return [(source, row_id, taken, held) for source, _, row_id, taken, held in chosen(index)]

    return run


def distinct(count, source="data"):
    return [(source, f"{source}{n}") for n in range(count)]


def held(rows):
    return {row_id for _, row_id, taken, out in rows if taken and out}


@pytest.mark.parametrize("ratio", [0.01, 0.05, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("n", [2, 3, 5, 10, 99])
def test_a_split_has_the_exact_size_and_one_at_least_on_each_side(choose, n, ratio):
    assert len(held(choose(distinct(n), ratio))) == min(max(1, round(n * ratio)), n - 1)


def test_ten_at_a_fifth_give_eight_and_two(choose):
    assert len(held(choose(distinct(10), 0.2))) == 2


def test_a_split_depends_on_content_and_seed_and_not_on_order(choose):
    rows = distinct(50)
    assert held(choose(rows, seed=3)) == held(choose(rows[::-1], seed=3))
    assert held(choose(rows, seed=3)) != held(choose(rows, seed=4))


def test_equal_rows_stand_on_one_side(choose):
    rows = [*distinct(20), *distinct(10), *distinct(5)]
    for seed in range(8):
        sides = {}
        found = choose(rows, 0.3, seed, deduplicate=False)
        for _, row_id, _, out in found:
            sides.setdefault(row_id.partition("-")[0], set()).add(out)
        assert all(len(side) == 1 for side in sides.values())
        assert len({row_id for _, row_id, *_ in found}) == 35
        assert len(held(found)) == round(35 * 0.3)


def test_rows_of_one_conversation_stand_on_one_side_and_count_as_one(choose):
    rows = [("data", f"row{n}", f"c{n // 3}") for n in range(60)]
    sides = {}
    for _, row_id, _, out in choose(rows, 0.2):
        sides.setdefault(int(row_id.removeprefix("row")) // 3, set()).add(out)
    assert all(len(side) == 1 for side in sides.values())
    assert sum(side == {True} for side in sides.values()) == 4


def test_conversations_that_share_an_equal_row_stand_together(choose):
    rows = [("data", "hello", "c0"), ("data", "x", "c0"), ("data", "hello", "c1"), ("data", "y", "c1")]
    rows += [("data", "y", "c2"), ("data", "z", "c2"), *distinct(30)]
    for seed in range(8):
        found = choose(rows, 0.3, seed, deduplicate=False)
        assert len({out for _, row_id, _, out in found if not row_id.startswith("data")}) == 1


def test_conversations_are_joined_late_too(choose):
    rows = [("data", "a", "c0"), ("data", "b", "c1"), ("data", "c", "c2"), *distinct(30)]
    rows += [("data", "a", "c1"), ("data", "b", "c2"), ("data", "c", "c0")]
    for seed in range(8):
        found = choose(rows, 0.3, seed, deduplicate=False)
        assert len({out for _, row_id, _, out in found if not row_id.startswith("data")}) == 1


@pytest.mark.parametrize("rows", [[("data", "a")] * 3, [("data", "a", "c"), ("data", "b", "c")]], ids=["equal", "one"])
def test_what_cannot_be_split_is_the_users_error(choose, rows):
    with pytest.raises(UserError, match="none can be held out"):
        choose(rows, deduplicate=False)


def test_groups_that_are_all_too_large_are_split_all_the_same(choose):
    rows = [("data", "a")] * 5 + [("data", "b")] * 4
    found = choose(rows, 0.1, deduplicate=False)
    assert {row_id.partition("-")[0] for row_id in held(found)} == {"b"}


def test_each_source_has_its_share_of_the_validation_side(choose):
    rows = [*distinct(60, "math"), *distinct(30, "code"), *distinct(10, "chat")]
    out = Counter(source for source, _, _, is_out in choose(rows, 0.2) if is_out)
    assert out == {"math": 12, "code": 6, "chat": 2}


def test_a_small_source_is_held_out_too(choose):
    rows = [*distinct(96, "math"), *distinct(2, "code"), *distinct(1, "chat")]
    found = choose(rows, 0.05)
    out = Counter(source for source, _, _, is_out in found if is_out)
    assert out == {"math": 4, "code": 1}


def test_weights_are_the_shares_of_what_is_kept(choose):
    rows = [*distinct(40, "math"), *distinct(40, "code"), *distinct(40, "chat")]
    found = choose(rows, weights=[2.0, 1.0, 0.5], limit=35)
    assert Counter(source for source, _, taken, _ in found if taken) == {"math": 20, "code": 10, "chat": 5}
    assert choose.reasons == {"over_quota": 85}


def test_without_a_limit_as_many_are_taken_as_the_scarcest_source_allows(choose):
    found = choose([*distinct(40, "math"), *distinct(6, "code")], weights=[3.0, 1.0])
    assert Counter(source for source, _, taken, _ in found if taken) == {"math": 18, "code": 6}


def test_a_limit_without_weights_takes_of_every_source(choose):
    found = choose([*distinct(60, "math"), *distinct(20, "code")], weights=[None, None], limit=8)
    assert Counter(source for source, _, taken, _ in found if taken) == {"math": 6, "code": 2}


def test_what_is_taken_depends_on_content_and_seed_and_not_on_order(choose):
    rows = [*distinct(40, "math"), *distinct(40, "code")]
    backwards = [*rows[:40][::-1], *rows[40:][::-1]]

    def taken(rows, seed):
        return {row_id for _, row_id, is_taken, _ in choose(rows, seed=seed, weights=[1.0, 1.0], limit=20) if is_taken}

    assert taken(rows, 1) == taken(backwards, 1)
    assert taken(rows, 1) != taken(rows, 2)


def test_a_source_that_would_give_nothing_is_refused_by_name(choose):
    rows = [*distinct(40, "math"), *distinct(40, "code")]
    with pytest.raises(UserError, match="source code would give none of 10 rows by its weight"):
        choose(rows, weights=[1000.0, 1.0], limit=10)


def test_a_source_without_a_usable_row_is_refused_with_its_first_reason(choose):
    rows = [*distinct(4, "math"), ("code", "math1")]
    with pytest.raises(UserError, match="source code has no usable row; first: line 5 an earlier row"):
        choose(rows, weights=[1.0, 1.0])


@given(st.integers(0, 500), st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12))
def test_shares_are_exact_within_one(total, weights):
    shares = largest_remainder(total, weights)
    assert sum(shares) == total
    exact = [total * weight / sum(weights) for weight in weights]
    assert all(abs(share - of) < 1 + 1e-6 for share, of in zip(shares, exact, strict=True))


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.01, 100)), min_size=1, max_size=8), st.integers(2, 100))
def test_no_source_gives_more_than_it_has(sources, limit):
    available, weights = zip(*sources, strict=True)
    for wanted in (quotas(available, weights, None), quotas(available, weights, limit)):
        assert all(quota <= rows for quota, rows in zip(wanted, available, strict=True))
    assert sum(quotas(available, weights, limit)) <= limit


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 1), st.floats(0.001, 0.999)
)
def test_validation_shares_are_exact_and_every_source_stands_on_both_sides_where_there_is_room(sizes, ratio):
    n, shares = sum(sizes), validation_shares(sizes, ratio)
    total = min(max(1, round(n * ratio)), n - 1)
    assert sum(shares) == total
    assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
    if total >= len(sizes) and n - total >= len(sizes):
        assert all(0 < share < size for share, size in zip(shares, sizes, strict=True) if size > 1)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(0, 6)), min_size=2, max_size=40),
    st.floats(0.01, 0.99),
    st.integers(0, 3),
)
def test_splits_are_disjoint_and_complete_whatever_belongs_together(tmp_path_factory, rows, ratio, seed):
    path = tmp_path_factory.mktemp("index") / "rows.sqlite"
    with RowIndex(path, ["data"], deduplicate=False, limit=None) as index:
        for line, (identity, conversation) in enumerate(rows, 1):
            name = None if conversation is None else str(conversation)
            index.add(AcceptedRow("data", line, str(identity), {}, "{}", name, Counter()))
        try:
            hold_out(index, ratio, seed)
        except UserError:
            return
        found = list(chosen(index))
    assert [line for _, line, *_ in found] == list(range(1, len(rows) + 1))
    assert {out for *_, out in found} == {True, False}
    sides = {}
    for (identity, conversation), (*_, out) in zip(rows, found, strict=True):
        sides.setdefault(("row", identity), set()).add(out)
        if conversation is not None:
            sides.setdefault(("conversation", conversation), set()).add(out)
    assert all(len(side) == 1 for side in sides.values())
