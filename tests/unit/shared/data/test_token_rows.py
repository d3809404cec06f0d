"""Rows of token ids: what is taken, clipped and refused."""

import json

import pytest

from shared.data.files import RawRow
from shared.data.refusal import RowRejected
from shared.data.row_reader import RowReader
from shared.data.token_rows import parse_token_row
from shared.schemas.spec import DataSpec

pytestmark = pytest.mark.data


def parsed(ids, mask, vocab_size=512, max_seq_len=64):
    return parse_token_row({"input_ids": ids, "loss_mask": mask}, vocab_size, max_seq_len)


def refusal(ids, mask, **options):
    with pytest.raises(RowRejected) as caught:
        parsed(ids, mask, **options)
    return caught.value


def read(row, **data):
    reader = RowReader(DataSpec(**{"dataset": "ds_x", "generate": False, **data}), [], 512)
    return reader.read(RawRow("data", 1, json.dumps(row)))


def test_a_row_is_taken_as_it_is():
    row = parsed([5, 6, 7], [0, 1, 1])
    assert (row.input_ids, row.loss_mask, row.notes) == ([5, 6, 7], [0, 1, 1], {})


@pytest.mark.parametrize("bad", [-1, 512, 2**63, 10**400, True, False, 5.0, "5", None, [5], float("nan")])
def test_an_id_that_is_no_token_is_refused_with_its_place(bad):
    problem = refusal([5, 6, bad], [0, 1, 1])
    assert problem.reason == "bad_token_id"
    assert " at 3" in problem.message


def test_without_a_verifier_ids_have_no_upper_bound():
    assert parsed([5, 163839], [0, 1], vocab_size=None).input_ids == [5, 163839]
    assert refusal([5, -1], [0, 1], vocab_size=None).reason == "bad_token_id"


@pytest.mark.parametrize("ids", ["5 6", {"5": 6}, 5])
def test_ids_that_are_no_list_are_refused(ids):
    assert refusal(ids, [0, 1]).reason == "bad_token_id"


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (None, "no_loss_mask"),
        ([0, 1], "mask_length"),
        ([0, 1, 1, 1], "mask_length"),
        ([], "mask_length"),
        ("011", "bad_mask"),
        ([0, 1, 2], "bad_mask"),
        ([0, 1, -1], "bad_mask"),
        ([0, 1, 1.0], "bad_mask"),
        ([0, 1, None], "bad_mask"),
        ([0, 1, "1"], "bad_mask"),
        ([0, 0, 0], "no_supervised_token"),
        ([1, 0, 0], "no_supervised_token"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask, reason):
    assert refusal([5, 6, 7], mask).reason == reason


@pytest.mark.parametrize(("ids", "mask"), [([], []), ([5], [1])])
def test_a_row_with_nothing_to_learn_is_refused(ids, mask):
    assert refusal(ids, mask).reason == "no_supervised_token"


def test_a_mask_of_booleans_is_one_of_bits():
    mask = parsed([5, 6], [False, True]).loss_mask
    assert mask == [0, 1]
    assert {type(bit) for bit in mask} == {int}


@pytest.mark.parametrize(("length", "outcome"), [(63, "kept"), (64, "kept"), (65, "clipped"), (500, "clipped")])
def test_a_row_is_clipped_to_the_longest_that_is_asked(length, outcome):
    row = parsed([5] * length, [0] * 60 + [1] * (length - 60))
    assert (len(row.input_ids), len(row.loss_mask)) == (min(length, 64),) * 2
    assert row.notes == ({"clipped": 1} if outcome == "clipped" else {})


def test_a_row_whose_learnt_tokens_are_all_cut_off_is_refused():
    assert refusal([5] * 70, [0] * 64 + [1] * 6).reason == "prompt_too_long"
    assert parsed([5] * 70, [0] * 63 + [1] * 7).loss_mask == [0] * 63 + [1]


@pytest.mark.parametrize("other", ["prompt", "messages", "conversations"])
def test_a_row_is_of_one_form(other):
    value = {"prompt": "q", "messages": [{"role": "user", "content": "q"}], "conversations": []}[other]
    with pytest.raises(RowRejected, match=f"{other} and input_ids") as caught:
        read({"input_ids": [5, 6], "loss_mask": [0, 1], other: value})
    assert caught.value.reason == "several_forms"


def test_a_form_that_is_null_is_not_there():
    assert read({"input_ids": [5, 6], "loss_mask": [0, 1], "messages": None, "prompt": None}).content["input_ids"] == [
        5,
        6,
    ]


@pytest.mark.parametrize("row", [{}, {"loss_mask": [0, 1]}, {"text": "q"}, {"prompt": None}])
def test_a_row_of_no_form_is_refused(row):
    with pytest.raises(RowRejected, match="prompt, messages, conversations, input_ids") as caught:
        read(row)
    assert caught.value.reason == "no_conversation"


def test_rows_of_token_ids_cannot_be_generated_anew():
    with pytest.raises(RowRejected, match=r"data\.generate to false") as caught:
        read({"input_ids": [5, 6], "loss_mask": [0, 1]}, generate=True)
    assert caught.value.reason == "pretokenised"


def test_a_conversation_without_an_answer_teaches_nothing_unless_one_is_generated():
    with pytest.raises(RowRejected) as caught:
        read({"prompt": "q"})
    assert caught.value.reason == "no_answer"


def test_equal_rows_have_equal_ids_also_where_only_the_cut_off_part_differs():
    left, right = ({"input_ids": [5] * 12 + [tail], "loss_mask": [0] * 4 + [1] * 9} for tail in (6, 7))
    assert read(left).identity != read(right).identity
    assert read(left, max_seq_len=12).identity == read(right, max_seq_len=12).identity


@pytest.mark.parametrize(("given", "name"), [("a", '"a"'), (7, "7"), ("7", '"7"'), ("", None), (None, None)])
def test_a_conversation_is_named_by_text_or_number(given, name):
    assert read({"input_ids": [5, 6], "loss_mask": [0, 1], "conversation_id": given}).conversation == name


@pytest.mark.parametrize("given", [True, 1.5, ["a"], {}])
def test_any_other_name_of_a_conversation_is_refused(given):
    with pytest.raises(RowRejected) as caught:
        read({"input_ids": [5, 6], "loss_mask": [0, 1], "conversation_id": given})
    assert caught.value.reason == "bad_conversation_id"
