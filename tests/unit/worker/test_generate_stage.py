"""generate: exact ids, counts that add up, faults that end well, and nothing asked for twice."""

import errno

import pytest

from services.worker.data.rows import RowFolder, read_shards
from services.worker.stages import generate, prepare
from shared.errors import UserError, VerifierError
from tests.support.stage_runs import (
    StageRunner,
    answer_of,
    job_spec,
    prompt_of,
    prompts,
    read_jsonl,
    write_rows,
    write_verifier,
)
from tests.support.verifier_stub import END, END_THINK, Script, render, words

pytestmark = pytest.mark.data


@pytest.fixture
def prepared(tmp_path, stub):
    verifier = write_verifier(tmp_path / "verifier")

    def start(rows, **changes):
        dataset = write_rows(tmp_path / "data.jsonl", rows)
        runner = StageRunner(tmp_path / "runs", job_spec(verifier, **changes), dataset, stub.url)
        runner.run(prepare)
        return runner

    return start


def rows_of(runner):
    return {row.line: row for row, _ in read_shards(runner.last.out)}


def test_rows_hold_the_ids_that_were_read_and_written_and_their_states(prepared, stub):
    runner = prepared(prompts(5), data={"shard_rows": 2})
    summary = runner.run(generate)
    assert summary["conversations"] == summary["finished"] == summary["rows"] == summary["with_states"] == 5
    assert summary["train"], summary["val"] == (4, 1)
    row = rows_of(runner)[1]
    assert prompt_of(row) == render([{"role": "user", "content": "please answer prompt-0"}])
    assert answer_of(row) == [*words("we look at prompt-0"), END_THINK, *words("the answer to prompt-0"), END]
    shards = sorted(path.name for path in runner.last.out.glob("rows_*"))
    assert shards == ["rows_0-2", "rows_2-4", "rows_4-5"]
    assert all(states.is_file() for _, states in read_shards(runner.last.out))
    assert list(stub.exchange.iterdir()) == []


def test_a_conversation_of_several_turns_gives_a_row_for_each(prepared):
    turns = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "old"}]
    conversation = {"system": "be brief", "messages": [*turns, {"role": "user", "content": "second"}]}
    runner = prepared([conversation, *prompts(3)], data={"deduplicate": False})
    runner.run(generate)
    rows = [row for row, _ in read_shards(runner.last.out) if row.line == 1]
    assert [row.turn for row in rows] == [0, 1]
    assert prompt_of(rows[1]) == render(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": rows[0].content},
            {"role": "user", "content": "second"},
        ]
    )
    assert len({row.split for row in rows}) == 1


def test_finish_reasons_are_counted_and_kept_with_each_row(prepared, stub):
    for number in range(7):
        stub.plan(f"prompt-{number}", Script(finish_reason="length"))
    stub.plan("prompt-7", Script(finish_reason="content_filter"))
    rows = [{"prompt": f"please answer prompt-{n}"} for n in range(20)]
    summary = (runner := prepared(list(reversed(rows)))).run(generate)
    assert summary["finish_reasons"] == {"length": 7, "stop": 12}
    assert summary["rejected"] == {"content_filter": 1}
    assert [row.finish_reason for row in rows_of(runner).values()].count("length") == 7
    assert not any(row.last_id == END for row in rows_of(runner).values() if row.finish_reason == "length")


def test_truncated_answers_may_be_dropped(prepared, stub):
    stub.plan("prompt-1", Script(finish_reason="length"))
    summary = prepared(prompts(10), data={"on_truncated": "drop"}).run(generate)
    assert summary["rejected"] == {"truncated": 1}
    assert list(stub.exchange.iterdir()) == []


@pytest.mark.parametrize(("ids", "rejected"), [((60,), {"no_supervised_token": 1}), ((60, 61), {})])
def test_an_answer_needs_two_tokens(prepared, stub, ids, rejected):
    stub.plan("prompt-2", Script(token_ids=ids))
    assert prepared(prompts(5)).run(generate)["rejected"] == rejected


def test_rows_are_dropped_clipped_or_kept_by_length_and_counted(prepared):
    long = [{"prompt": " ".join([f"w{i}" for i in range(count)])} for count in (70, 55, 6)]
    runner = prepared([*long, *prompts(3)], data={"max_seq_len": 64})
    summary = runner.run(generate)
    assert summary["rejected"] == {"prompt_too_long": 1}
    assert summary["clipped"] == 1
    lengths = {line: len(row.input_ids) for line, row in rows_of(runner).items()}
    assert lengths[2] == 64
    assert lengths[3] < 64
    assert all(sum(row.loss_mask) > 0 for row in rows_of(runner).values())


def test_faults_of_single_answers_end_well(prepared, stub):
    stub.plan("prompt-0", Script(status=429, retry_after="0.1"))
    stub.plan("prompt-1", Script(status=503), Script(status=503))
    stub.plan("prompt-2", Script(drop=True))
    stub.plan("prompt-3", Script(status=400, error="maximum context length is 5 tokens"))
    stub.plan("prompt-4", Script(content="so</think>answer", reasoning=None))
    stub.plan("prompt-5", Script(content=None, reasoning="half a", finish_reason="length"))
    stub.plan("prompt-6", Script(no_choices=True))
    summary = (runner := prepared([{"prompt": f"please answer prompt-{n}"} for n in range(10, 20)] + prompts(10))).run(
        generate
    )
    assert summary["conversations"] == 20 == summary["finished"] + 2
    assert summary["rejected"] == {"no_choices": 1, "prompt_too_long": 1}
    rejects = {item["line"]: item for item in read_jsonl(runner.last.out / "rejects.jsonl")}
    assert "maximum context length" in rejects[14]["message"]
    texts = {row.line: (row.content, row.reasoning) for row in rows_of(runner).values()}
    assert texts[15] == ("answer", "so")
    assert texts[16] == ("", "half a")
    assert "None" not in str(texts)
    assert list(stub.exchange.iterdir()) == []


def test_a_verifier_that_goes_away_fails_the_stage_and_the_rows_made_are_taken_over(prepared, stub):
    stub.gone_after = 6
    runner = prepared(prompts(30), data={"concurrency": 1})
    with pytest.raises(VerifierError, match="in a row"):
        runner.run(generate)
    work, asked = runner.last.work, len(stub.answered)
    stub.gone, stub.gone_after = False, None
    summary = runner.run(generate, previous=(work,))
    assert summary["taken_over"] == 6
    assert summary["rows"] == 30
    assert len(stub.answered) - asked == 24
    assert list(stub.exchange.iterdir()) == []


def test_too_many_failed_turns_fail_the_stage(prepared, stub):
    for number in range(3):
        stub.plan(f"prompt-{number}", Script(no_choices=True))
    with pytest.raises(VerifierError, match="3 of 10 turns failed"):
        prepared(prompts(10), data={"max_bad_fraction": 0.2}).run(generate)


def test_a_store_that_is_full_is_an_error_of_the_store(prepared, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    runner = prepared(prompts(5))
    monkeypatch.setattr(RowFolder, "write", full)
    with pytest.raises(OSError, match="No space left"):
        runner.run(generate)


def test_a_file_of_states_that_never_comes_leaves_the_row_without(prepared, stub):
    stub.plan("prompt-1", Script(states="missing"))
    summary = (runner := prepared(prompts(5))).run(generate)
    assert summary["with_states"] == 4
    assert not rows_of(runner)[2].has_states


def test_no_side_of_the_split_may_be_empty(prepared, stub):
    runner = prepared(prompts(2), data={"val_ratio": 0.5, "max_bad_fraction": 1.0})
    held_out = next(row for row in read_jsonl(runner.last.out / "conversations.jsonl") if row["split"] == "val")
    stub.plan(held_out["messages"][0]["content"], Script(no_choices=True))
    with pytest.raises(UserError, match="1 rows to train on and 0 held out"):
        runner.run(generate)


def existing(number, answer, **more):
    question = {"role": "user", "content": f"question-{number}"}
    return {"messages": [question, {"role": "assistant", "content": answer, **more}]}


def test_existing_answers_are_supervised_with_their_reasoning_and_end_of_turn(prepared, stub):
    rows = [existing(0, "<think>so it is</think>yes"), existing(1, "plain"), existing(2, None)]
    rows += [existing(number, "no") for number in range(3, 12)]
    summary = (runner := prepared(rows, data={"generate": False})).run(generate)
    assert summary["rejected"] == {"empty_answer": 1}
    assert stub.chats() == []
    made = rows_of(runner)
    assert answer_of(made[1]) == [*words("so it is"), END_THINK, *words("yes"), END]
    assert answer_of(made[2]) == [*words("plain"), END]
    assert prompt_of(made[2]) == render([rows[1]["messages"][0]], thinking=False)


def test_earlier_existing_answers_are_context_without_their_reasoning(prepared):
    second = existing(1, "second")["messages"]
    rows = [
        {"messages": [*existing(0, "<think>why</think>first")["messages"], *second]},
        existing(2, "x"),
        existing(3, "y"),
    ]
    (runner := prepared(rows, data={"generate": False})).run(generate)
    context = [rows[0]["messages"][0], {"role": "assistant", "content": "first"}, second[0]]
    row = next(row for row, _ in read_shards(runner.last.out) if row.line == 1 and row.turn == 1)
    assert prompt_of(row) == render(context, thinking=False)
