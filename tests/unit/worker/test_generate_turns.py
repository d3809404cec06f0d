"""Conversations turn by turn: the verifier's own answers as context, and books that hold every turn."""

import pytest

from services.worker.data.rows import read_shards
from services.worker.stages import generate, prepare
from tests.support.stage_runs import StageRunner, job_spec, prompt_of, prompts, read_jsonl, write_rows, write_verifier
from tests.support.verifier_stub import Script, render, words

pytestmark = pytest.mark.data
SYSTEM = {"role": "system", "content": "be brief"}
TOOLS = [{"type": "function", "function": {"name": "look"}}]


@pytest.fixture
def written(tmp_path, stub):
    """Run prepare and generate; returns the summary, the rows of the first line, and the rejects."""
    verifier = write_verifier(tmp_path / "verifier")

    def run(conversation, **data):
        existing = data.get("generate") is False
        rows = [conversation, *(_existing(n) for n in range(9))] if existing else [conversation, *prompts(9)]
        spec = job_spec(verifier, data={"max_bad_fraction": 1.0, **data})
        runner = StageRunner(tmp_path / "runs", spec, write_rows(tmp_path / "data.jsonl", rows), stub.url)
        runner.run(prepare)
        summary = runner.run(generate)
        books = summary["accounting"]
        assert books["unit"] == "turns"
        assert books["kept"] == summary["rows"] == books["taken"] - sum(books["rejected"].values())
        rejects = read_jsonl(runner.last.out / "rejects.jsonl")
        assert len(rejects) == sum(books["rejected"].values())
        return summary, [row for row, _ in read_shards(runner.last.out) if row.line == 1], rejects

    return run


def _existing(number):
    return {"messages": [user(f"other-{number}"), assistant(f"answer-{number} yes")]}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(id_, name="look"):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}}


def talk(*pairs, **more):
    return {"messages": [SYSTEM, *(message for pair in pairs for message in pair)], **more}


def test_each_turn_is_written_in_the_context_of_the_verifiers_own_answers(written, stub):
    old = [(user(f"question-{n}"), assistant(f"old-{n}")) for n in range(3)]
    _, rows, _ = written(talk(*old, tools=TOOLS))
    assert [row.turn for row in rows] == [0, 1, 2]
    history = [SYSTEM]
    for number, row in enumerate(rows):
        history.append(user(f"question-{number}"))
        assert prompt_of(row) == render(history)
        history.append(assistant(row.content))
    asked = [seen.body for seen in stub.chats() if "question-" in seen.prompt]
    assert all(body["tools"] == TOOLS and body["messages"][0] == SYSTEM for body in asked)
    assert not any("old-" in str(body["messages"]) for body in asked)


def test_calls_of_tools_stay_in_the_history_as_the_verifier_returned_them(written, stub):
    stub.plan("question", Script(content="", tool_calls=(call("own"),), finish_reason="tool_calls"))
    result = {"role": "tool", "content": "zebra quartz done", "tool_call_id": "theirs"}
    pairs = (user("question"), assistant("", tool_calls=[call("theirs")])), (result, assistant("old"))
    _, rows, _ = written(talk(*pairs, tools=TOOLS))
    assert rows[0].tool_calls == [call("own")]
    assert rows[0].finish_reason == "tool_calls"
    last = next(seen.body["messages"] for seen in stub.chats() if seen.body["messages"][-1]["role"] == "tool")
    assert last[2]["tool_calls"] == [call("own")]
    assert last[3] == {**result, "tool_call_id": "own"}
    learnt = [i for i, m in zip(rows[1].input_ids, rows[1].loss_mask, strict=True) if m]
    assert not set(words("zebra quartz")) & set(learnt)
    assert set(words("zebra quartz")) <= set(prompt_of(rows[1]))


def test_a_turn_that_is_refused_ends_the_conversation_and_the_rows_before_it_are_kept(written, stub):
    stub.plan("question-1", Script(finish_reason="content_filter"))
    old = [(user(f"question-{n}"), assistant(f"old-{n}")) for n in range(4)]
    summary, rows, rejects = written(talk(*old))
    assert [row.turn for row in rows] == [0]
    assert summary["rejected"] == {"content_filter": 1, "earlier_turn_rejected": 2}
    assert summary["accounting"]["taken"] == 4 + 9
    assert [(item["line"], item["turn"], item["reason"]) for item in rejects] == [
        (1, 1, "content_filter"),
        (1, 2, "earlier_turn_rejected"),
        (1, 3, "earlier_turn_rejected"),
    ]
    assert summary["conversations"] - summary["finished"] == 1


def test_half_a_thought_is_a_row_but_no_answer_to_go_on_from(written, stub):
    stub.plan("question-0", Script(content=None, reasoning="half a", finish_reason="length"))
    old = [(user(f"question-{n}"), assistant(f"old-{n}")) for n in range(2)]
    summary, rows, _ = written(talk(*old))
    assert [(row.turn, row.content, row.reasoning) for row in rows] == [(0, "", "half a")]
    assert summary["rejected"] == {"earlier_turn_unfinished": 1}


def test_an_existing_turn_that_is_refused_does_not_stop_the_later_ones(written, stub):
    turns = [
        (user("one"), assistant("first yes")),
        (user("two"), assistant("")),
        (user("three"), assistant("third no")),
    ]
    summary, rows, rejects = written(talk(*turns), generate=False)
    assert [row.turn for row in rows] == [0, 2]
    assert summary["rejected"] == {"empty_answer": 1}
    assert rejects[0]["turn"] == 1
    history = [SYSTEM, *turns[0], *turns[1], turns[2][0]]
    assert prompt_of(rows[1]) == render(history, thinking=False)
    assert stub.chats() == []


def test_a_history_that_the_template_cannot_render_ends_the_conversation(written, stub):
    stub.plan("render two", Script(status=400, error="the template refuses this"))
    turns = [(user(text), assistant(f"{text} yes")) for text in ("one", "two", "three")]
    summary, rows, rejects = written(talk(*turns), generate=False)
    assert [row.turn for row in rows] == [0]
    assert summary["rejected"] == {"refused_400": 1, "earlier_turn_rejected": 1}
    assert "the template refuses this" in rejects[0]["message"]


@pytest.mark.parametrize("thinking", [True, False])
def test_what_the_template_opens_is_not_learnt_thinking_or_not(written, thinking):
    _, rows, _ = written(talk((user("question"), assistant("old"))), sampling={"thinking": thinking})
    assert prompt_of(rows[0]) == render([SYSTEM, user("question")], thinking=thinking)
