"""Turns and rows: where the assistant speaks, what is supervised, what an answer is."""

import pytest

from services.worker.data.earlier_rows import EarlierRows
from services.worker.data.rows import Row, RowFolder, answer_fields
from services.worker.data.turns import answer_in_history, row_seed
from shared.data.rendering import split_reasoning, spoken
from shared.data.turns import speaking_turns
from shared.schemas.prepared import Prepared

pytestmark = pytest.mark.data


def turn(role, content="x", **more):
    return {"role": role, "content": content, **more}


def roles(turns):
    return [([message["role"] for message in before], given is not None) for before, given in turns]


def test_the_verifier_speaks_wherever_the_datasets_assistant_does_and_at_the_end():
    messages = [turn("system"), turn("user"), turn("assistant"), turn("user")]
    assert roles(speaking_turns(messages, generate=True)) == [(["system", "user"], True), (["user"], False)]


def test_existing_answers_speak_only_where_there_is_one():
    messages = [turn("user"), turn("assistant"), turn("user")]
    assert roles(speaking_turns(messages, generate=False)) == [(["user"], True)]


def test_turns_that_call_tools_are_turns_like_others():
    messages = [turn("user"), turn("assistant", tool_calls=[{"id": "1"}]), turn("tool"), turn("assistant")]
    assert roles(speaking_turns(messages, generate=True)) == [(["user"], True), (["tool"], True)]


def test_an_open_tool_result_is_answered():
    messages = [turn("user"), turn("assistant", tool_calls=[{"id": "1"}]), turn("tool")]
    assert roles(speaking_turns(messages, generate=True)) == [(["user"], True), (["tool"], False)]


@pytest.mark.parametrize(
    ("message", "content", "reasoning"),
    [
        ({"content": "answer"}, "answer", ""),
        ({"content": "answer", "reasoning": "so"}, "answer", "so"),
        ({"content": "answer", "reasoning_content": "so"}, "answer", "so"),
        ({"content": "<think>so</think>answer"}, "answer", "so"),
        ({"content": "so</think>answer"}, "answer", "so"),
        ({"content": "</think>answer", "reasoning": "so"}, "answer", "so"),
        ({"content": "answer", "reasoning": "so</think>"}, "answer", "so"),
        ({"content": None, "reasoning": "half a"}, "", "half a"),
        ({"content": None}, "", ""),
        ({}, "", ""),
        ({"content": "<think>half a"}, "", "half a"),
        ({"content": " as it is \n"}, " as it is \n", ""),
        ({"content": "<think>\nso\n</think>\n\nanswer "}, "answer ", "so"),
        ({"content": "<think>\n\n</think>\n\nanswer"}, "answer", ""),
    ],
)
def test_an_answer_is_split_whoever_split_it_before(message, content, reasoning):
    assert split_reasoning(message) == (content, reasoning)


def row(answer=(4, 5, 6), max_seq_len=128, **more):
    fields = {
        "id": "c.0",
        "conversation": "c",
        "turn": 0,
        "line": 1,
        "source": "a.jsonl",
        "split": "train",
        "finish_reason": "stop",
        "has_states": False,
    }
    return Row(**{**fields, **answer_fields([1, 2, 3], list(answer), max_seq_len), **more})


def test_a_row_is_the_prompt_and_the_answer_without_its_last_id():
    assert row().input_ids == [1, 2, 3, 4, 5]
    assert row().loss_mask == [0, 0, 0, 1, 1]
    assert row().last_id == 6


@pytest.mark.parametrize(("answer", "supervised"), [([4], 0), ([4, 5], 1), ([4, 5, 6, 7], 3)])
def test_an_answer_has_one_loss_position_less_than_tokens(answer, supervised):
    made = row(answer)
    assert made.supervised == sum(made.loss_mask) == supervised
    assert made.answer_tokens == len(answer)


@pytest.mark.parametrize(("limit", "clipped", "last"), [(6, False, 7), (5, True, 6), (4, True, 5)])
def test_an_answer_that_ends_exactly_at_the_limit_is_whole(limit, clipped, last):
    made = row([4, 5, 6, 7], limit)
    assert (made.clipped, made.last_id, len(made.input_ids)) == (clipped, last, limit)


def test_a_mask_that_is_shorter_than_its_ids_is_no_row():
    with pytest.raises(ValueError, match="as long as"):
        row(loss_mask=[0, 0, 0, 1])


def test_the_first_position_is_never_learnt():
    assert row(input_ids=[1, 2], loss_mask=[1, 1], last_id=None).supervised == 1


def prepared(id_, **more):
    fields = {"line": 7, "source": "b.jsonl", "split": "val", "messages": [turn("user")]}
    return Prepared(id=id_, **{**fields, **more})


def test_earlier_rows_are_found_by_content_and_stand_where_the_conversation_stands_now(tmp_path):
    (older := RowFolder(tmp_path / "work" / "rows")).write(row())
    older.states_path("c.0").write_bytes(b"states")
    (older.folder / "d.0.json.tmp").write_text("{half a row")
    (older.folder / "e.0.json").write_text('{"an older": "form"}')
    earlier = EarlierRows([tmp_path / "work", tmp_path / "absent"])
    found, states = earlier.find(prepared("c"), 1)[0]
    assert (found.line, found.source, found.split) == (7, "b.jsonl", "val")
    assert (found.input_ids, states.read_bytes()) == (row().input_ids, b"states")
    assert earlier.find(prepared("d"), 1) == earlier.find(prepared("e"), 1) == {}


def test_all_rows_of_a_conversation_come_from_one_place(tmp_path):
    for name, turns in (("newest", [0]), ("older", [0, 1])):
        folder = RowFolder(tmp_path / name / "rows")
        for number in turns:
            folder.write(row(id=f"c.{number}", turn=number, content=name))
    found = EarlierRows([tmp_path / "newest", tmp_path / "older"]).find(prepared("c"), 3)
    assert [found[number][0].content for number in found] == ["older", "older"]


def call(id_, name="look", arguments="{}"):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_results_of_tools_are_addressed_to_the_calls_that_were_made():
    results = [turn("tool", tool_call_id="theirs")]
    made = row(content="", tool_calls=[call("own", arguments='{"x": 1}')])
    given = turn("assistant", "", tool_calls=[call("theirs")])
    assert answer_in_history(made, given, results) == spoken("", "", made.tool_calls)
    assert results[0]["tool_call_id"] == "own"


@pytest.mark.parametrize("calls", [[], [call("own", "other")], [call("a"), call("b")]])
def test_results_of_calls_that_were_not_made_follow_the_datasets_own_turn(calls):
    results = [turn("tool", tool_call_id="theirs")]
    given = turn("assistant", "let me look", tool_calls=[call("theirs")])
    assert answer_in_history(row(content="no", tool_calls=calls), given, results) == given
    assert results[0]["tool_call_id"] == "theirs"


def test_an_answer_stands_in_the_history_as_it_was_given():
    made = row(content="yes ", reasoning="so", tool_calls=[call("own")])
    message = answer_in_history(made, turn("assistant", "old"), [turn("user")])
    assert (message["content"], message["reasoning"], message["tool_calls"]) == ("yes ", "so", [call("own")])


def test_each_row_has_its_own_seed_that_vllm_takes():
    seeds = {row_seed(7, f"c.{n}") for n in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert row_seed(7, "c.0") != row_seed(8, "c.0")
