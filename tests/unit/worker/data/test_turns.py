"""Turns and rows: where the assistant speaks, what is supervised, what an answer is."""

import pytest

from services.worker.data.rows import Row, RowFolder
from services.worker.data.turns import row_seed, speaking_turns
from services.worker.data.verifier_client import split_reasoning


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


def test_turns_that_call_tools_stay_context_of_a_generated_answer():
    messages = [turn("user"), turn("assistant", tool_calls=[{"id": "1"}]), turn("tool"), turn("assistant")]
    assert roles(speaking_turns(messages, generate=True)) == [(["user", "assistant", "tool"], True)]


def test_an_open_tool_result_is_answered():
    messages = [turn("user"), turn("assistant", tool_calls=[{"id": "1"}]), turn("tool")]
    assert roles(speaking_turns(messages, generate=True)) == [(["user", "assistant", "tool"], False)]


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
    ],
)
def test_an_answer_is_split_whoever_split_it_before(message, content, reasoning):
    assert split_reasoning(message) == (content, reasoning)


def row(**more):
    fields = {
        "id": "c.0",
        "conversation": "c",
        "turn": 0,
        "line": 1,
        "split": "train",
        "prompt_ids": [1, 2, 3],
        "answer_ids": [4, 5, 6],
        "finish_reason": "stop",
        "has_states": False,
    }
    return Row(**{**fields, **more})


def test_a_row_is_the_prompt_and_the_answer_without_its_last_id():
    assert row().input_ids == [1, 2, 3, 4, 5]
    assert row().loss_mask == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(("answer", "supervised"), [([4], 0), ([4, 5], 1), ([4, 5, 6, 7], 3)])
def test_an_answer_has_one_loss_position_less_than_tokens(answer, supervised):
    made = row(answer_ids=answer)
    assert sum(made.loss_mask) == supervised
    assert len(made.loss_mask) == len(made.input_ids)


def test_rows_of_earlier_attempts_are_taken_over_once_and_the_newest_wins(tmp_path):
    folders = [RowFolder(tmp_path / name) for name in ("newest", "older", "now")]
    folders[0].write(row(content="newest"))
    folders[1].write(row(content="older"))
    folders[1].states_path("d.0").write_bytes(b"states")
    folders[1].write(row(id="d.0", has_states=True))
    (folders[1].folder / "e.0.json.tmp").write_text("{half a row")
    assert folders[2].take_over([folders[0].folder, folders[1].folder]) == 2
    assert folders[2].read("c.0").content == "newest"
    assert folders[2].states_path("d.0").read_bytes() == b"states"
    assert not folders[2].has("e.0")


def test_each_row_has_its_own_seed_that_vllm_takes():
    seeds = {row_seed(7, f"c.{n}") for n in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert row_seed(7, "c.0") != row_seed(8, "c.0")
