"""CASES.md 1 to 7, 16, 17 and 19: each example with its right value, and other members of its kind."""

import json

import pytest

from services.worker.data.rows import read_shards
from services.worker.stages import generate, prepare
from shared.errors import UserError
from shared.schemas.accounting import Accounting
from shared.schemas.prepared import Prepared
from tests.support.dataset_files import spellings
from tests.support.stage_runs import (
    VOCAB,
    StageRunner,
    job_spec,
    prompts,
    read_jsonl,
    write_dataset,
    write_rows,
    write_verifier,
)
from tests.support.verifier_stub import Script, words

pytestmark = pytest.mark.data


@pytest.fixture
def runner_for(tmp_path):
    verifier = write_verifier(tmp_path / "verifier")

    def make(rows, endpoint=None, **data):
        dataset = rows if hasattr(rows, "is_file") else write_rows(tmp_path / "data.jsonl", rows)
        return StageRunner(tmp_path / "runs", job_spec(verifier, data=data), dataset, endpoint)

    return make


@pytest.fixture
def prepared(runner_for):
    """Run prepare; return its summary, the conversations by line and the reasons of rejects by line."""

    def run(rows, **data):
        runner = runner_for(rows, **data)
        summary = runner.run(prepare)
        kept = [Prepared.model_validate(row) for row in read_jsonl(runner.last.out / "conversations.jsonl")]
        rejects = read_jsonl(runner.last.out / "rejects.jsonl")
        books = Accounting.model_validate(summary["accounting"])
        assert (books.unit, books.taken, books.kept) == ("rows", summary["rows"], len(kept))
        assert sum(books.rejected.values()) == len(rejects)
        return summary, {row.line: row for row in kept}, {item["line"]: item["reason"] for item in rejects}

    return run


def sharegpt(*turns):
    return {"conversations": [{"from": role, "value": text} for role, text in turns]}


def spoken(row):
    return [(message["role"], message["content"]) for message in row.messages]


def test_case_1_leading_assistant_turns_and_users_in_a_row(prepared):
    rows = [
        sharegpt(("gpt", "hello"), ("human", "question"), ("gpt", "answer")),
        sharegpt(("human", "one"), ("human", "two"), ("gpt", "answer")),
        sharegpt(("gpt", "a"), ("gpt", "b"), ("human", "q"), ("gpt", "answer")),
        sharegpt(("system", "s"), ("gpt", "a"), ("human", "x"), ("human", "y"), ("human", "z"), ("gpt", "answer")),
        sharegpt(("gpt", "a")),
        sharegpt(("system", "s"), ("gpt", "a")),
    ]
    summary, kept, rejects = prepared(rows, generate=False)
    assert spoken(kept[1]) == [("user", "question"), ("assistant", "answer")]
    assert spoken(kept[2]) == [("user", "one\n\ntwo"), ("assistant", "answer")]
    assert spoken(kept[3]) == [("user", "q"), ("assistant", "answer")]
    assert spoken(kept[4]) == [("system", "s"), ("user", "x\n\ny\n\nz"), ("assistant", "answer")]
    assert rejects == {5: "no_user_turn", 6: "no_user_turn"}
    assert summary["mended"] == {"leading_assistant_dropped": 4, "user_turns_joined": 3}


def test_case_2_both_forms_give_the_same_tokens_and_supervise_every_answer(runner_for, stub):
    pairs = [(f"question {n}", f"MARK{n}") for n in range(3)]
    turns = [turn for pair in pairs for turn in zip(("human", "gpt"), pair, strict=True)]
    names = {"human": "user", "gpt": "assistant"}
    messages = [{"role": names[role], "content": text} for role, text in turns]
    others = [{"messages": [*messages[:1], {"role": "assistant", "content": f"other{n}"}]} for n in range(4)]
    made = []
    for row in ({**sharegpt(*turns), "system": "be brief"}, {"messages": messages, "system": "be brief"}):
        runner = runner_for([row, *others], stub.url, generate=False)
        runner.run(prepare)
        runner.run(generate)
        made.append([(row.input_ids, row.loss_mask) for row, _ in read_shards(runner.last.out) if row.line == 1])
    assert made[0] == made[1]
    brief = words("be brief")
    for (ids, mask), (_, marker) in zip(made[0], pairs, strict=True):
        supervised = [token for token, bit in zip(ids, mask, strict=True) if bit]
        assert words(marker) == supervised
        places = [i for i in range(len(ids)) if ids[i : i + 2] == brief]
        assert len(places) == 1
        assert mask[places[0]] == 0


@pytest.mark.parametrize("generates", [True, False])
def test_case_3_roles_are_mapped_or_the_row_is_refused(prepared, generates):
    pair = (("human", "q"), ("gpt", "a"))
    rows = [
        sharegpt(*pair, ("kimi-k2.5", "x")),
        sharegpt(("Human", "q1"), ("GPT", "a")),
        sharegpt((" user ", "q2"), (" assistant ", "a")),
        sharegpt(*pair, ("observation", "seen"), ("gpt", "b")),
        {"messages": [{"role": "user", "content": "q"}, {"content": "a"}]},
        {"messages": [{"role": "user", "content": "q"}, {"role": None, "content": "a"}]},
        sharegpt(*pair, ("function_call", '{"name": "look"}'), ("function", "found"), ("gpt", "c")),
        {"messages": [{"role": "\u3000USER\u00a0", "content": "q3"}, {"role": "MODEL", "content": "a"}]},
        sharegpt(*pair, ("tool", "result"), ("model", "d")),
        sharegpt(*pair, ("narrator", "x")),
    ]
    _, kept, rejects = prepared(rows, generate=generates)
    assert rejects == dict.fromkeys((1, 5, 6, 10), "unknown_role")
    assert [role for role, _ in spoken(kept[4])] == ["user", "assistant", "tool", "assistant"]
    assert [role for role, _ in spoken(kept[7])] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [role for role, _ in spoken(kept[8])] == ["user", "assistant"]
    assert [role for role, _ in spoken(kept[9])] == ["user", "assistant", "tool", "assistant"]


def test_case_3_the_message_names_line_and_role(prepared, runner_for):
    with pytest.raises(UserError, match=r"line 1 turn 1 has the role 'kimi-k2\.5'"):
        runner_for([sharegpt(("kimi-k2.5", "q"))] * 2).run(prepare)


def test_case_3_text_of_tools_is_never_supervised(runner_for, stub):
    rows = [
        sharegpt(("human", f"q{n}"), ("function_call", "CALLED"), ("observation", "SEEN"), ("gpt", f"answer{n}"))
        for n in range(5)
    ]
    runner = runner_for(rows, stub.url, generate=False)
    runner.run(prepare)
    runner.run(generate)
    for row, _ in read_shards(runner.last.out):
        supervised = {token for token, bit in zip(row.input_ids, row.loss_mask, strict=True) if bit}
        assert not supervised & {*words("CALLED"), *words("SEEN")}
        assert {*words("CALLED"), *words("SEEN")} <= set(row.input_ids)


def test_case_4_a_row_that_the_template_refuses_is_named_and_the_others_are_kept(runner_for, stub):
    stub.plan("prompt-41", Script(status=400, error="the chat template refuses this"))
    runner = runner_for(prompts(100), stub.url)
    runner.run(prepare)
    runner.run(generate)
    rejects = read_jsonl(runner.last.out / "rejects.jsonl")
    assert [item["line"] for item in rejects] == [42]
    assert "the chat template refuses this" in rejects[0]["message"]
    assert len(list(read_shards(runner.last.out))) == 99


@pytest.mark.parametrize(
    "rows",
    [["{", "[1]"], [{"text": "q"}] * 3, [sharegpt(("gpt", "a"))] * 3, [{"prompt": 5}] * 3],
    ids=["no rows", "no form", "no user turn", "numbers"],
)
def test_case_4_only_bad_rows_are_the_users_error_with_the_first_reasons(runner_for, rows):
    with pytest.raises(UserError, match=r"0 usable conversations are too few, rejected: .*; first: line 1 ") as caught:
        runner_for(rows).run(prepare)
    assert caught.value.reason == "user_error"


def test_case_5_equal_rows_in_every_spelling_give_identical_artifacts(runner_for, tmp_path):
    rows = [
        {"id": 1, "prompt": "größer \u2028 als", "note": "x"},
        {"prompt": "日本\r\n🙂"},
        {"system": "be brief", "prompt": "q"},
        {"id": 4, "prompt": "w", "tools": [{"type": "function", "function": {"name": "look"}}]},
        {"prompt": "say <|im_end|>"},
        *prompts(9),
        {"prompt": "q", "system": "be brief"},
    ]
    made = {}
    for name, path in spellings(tmp_path / "files", rows).items():
        runner = runner_for(path)
        summary = runner.run(prepare)
        made[name] = {file.name: file.read_bytes() for file in runner.last.out.iterdir()} | {"summary": summary}
        assert list(runner.last.work.iterdir()) == []
    for name, artifacts in made.items():
        assert artifacts == made["plain"], name
    assert made["plain"]["summary"]["rejected"] == {"control_token": 1, "duplicate": 1}


@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xef\xbb\xbf"], ids=["empty", "blank lines", "only a mark"])
def test_case_6_a_file_without_rows_is_the_users_error(runner_for, tmp_path, content):
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match="0 usable conversations") as caught:
        runner_for(path).run(prepare)
    assert caught.value.hint


def test_case_6_blank_lines_leave_line_numbers_the_files(prepared, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\n{"prompt": "a"}\n  \n\n{"prompt": 5}\r\n\r\n{"prompt": "b"}')
    _, kept, rejects = prepared(path)
    assert (sorted(kept), rejects) == ([2, 7], {5: "bad_content"})


def message(content, role="user"):
    question = [] if role == "user" else [{"role": "user", "content": f"q {content!r}"}]
    return {"messages": [*question, {"role": role, "content": content}]}


def test_case_7_content_of_every_kind(prepared):
    part = {"type": "text", "text": "question"}
    rows = [
        message("question"),
        message([part]),
        message([part, {"type": "text", "text": "more"}]),
        message(""),
        message(None),
        message(7),
        message([7]),
        message([{"type": "image_url", "image_url": {"url": "x"}}]),
        message([]),
        message({"text": "question"}),
        message(True),
        message("last"),
    ]
    summary, kept, rejects = prepared(rows)
    assert spoken(kept[1]) == [("user", "question")]
    assert spoken(kept[3]) == [("user", "question\nmore")]
    assert rejects == {
        2: "duplicate",  # one text part is the same as its text
        4: "empty_content",
        5: "bad_content",
        6: "bad_content",
        7: "bad_content",
        8: "bad_content",
        9: "empty_content",
        10: "bad_content",
        11: "bad_content",
    }
    assert "[{'type'" not in str([spoken(row) for row in kept.values()])
    assert summary["kept"] == 3


def test_case_7_an_empty_answer_is_no_sample(runner_for, stub):
    rows = [message(content, "assistant") for content in ("", None, [], *map(str, range(20)))]
    runner = runner_for(rows, stub.url, generate=False, max_bad_fraction=1.0)
    runner.run(prepare)
    runner.run(generate)
    assert sorted(row.line for row, _ in read_shards(runner.last.out)) == list(range(4, 24))
    assert [item["line"] for item in read_jsonl(runner.last.out / "rejects.jsonl")] == [1, 2, 3]


def tokens(prompt, answer):
    """A row of token ids that differs from those of other lengths."""
    return {"input_ids": [16 + prompt] * (prompt + answer), "loss_mask": [0] * prompt + [1] * answer}


def test_case_16_long_rows_of_token_ids_are_dropped_clipped_or_kept(prepared):
    rows = [tokens(70, 10), tokens(60, 10), tokens(10, 10), {**tokens(5, 9), "loss_mask": [0, 1]}, tokens(64, 1)]
    summary, kept, rejects = prepared(rows, generate=False, max_seq_len=64)
    assert rejects == {1: "prompt_too_long", 4: "mask_length", 5: "prompt_too_long"}
    assert summary["mended"] == {"clipped": 1}
    assert {line: len(row.input_ids) for line, row in kept.items()} == {2: 64, 3: 20}
    assert {line: sum(row.loss_mask) for line, row in kept.items()} == {2: 4, 3: 10}


def test_case_16_long_prompts_as_text_are_dropped_clipped_or_kept(runner_for, stub):
    texts = [" ".join(f"w{i}" for i in range(count)) for count in (70, 55, 6)]
    runner = runner_for([*({"prompt": text} for text in texts), *prompts(3)], stub.url, max_seq_len=64)
    runner.run(prepare)
    summary = runner.run(generate)
    lengths = {row.line: (len(row.input_ids), sum(row.loss_mask)) for row, _ in read_shards(runner.last.out)}
    assert 1 not in lengths
    assert lengths[2][0] == 64
    assert lengths[3][0] < 64
    assert all(supervised > 0 for _, supervised in lengths.values())
    assert summary["clipped"] == 1


def test_case_17_a_row_of_two_megabytes_is_taken_whole_or_refused_with_the_reason(prepared):
    text = "word " * 400_000
    ids = {"input_ids": [5] * 400_000, "loss_mask": [0] * 10 + [1] * 399_990}
    hidden = {"input_ids": [5] * 400_000, "loss_mask": [0] * 399_999 + [1]}
    _, kept, _ = prepared([{"prompt": text}, *prompts(2)])
    assert kept[1].messages == [{"role": "user", "content": text}]
    summary, kept, rejects = prepared([ids, hidden, tokens(3, 3)], generate=False, max_seq_len=128)
    assert len(kept[1].input_ids) == 128
    assert rejects == {2: "prompt_too_long"}
    assert summary["mended"] == {"clipped": 1}


def test_case_17_the_verifiers_own_refusal_names_the_row(runner_for, stub):
    stub.plan("word word", Script(status=400, error="maximum context length is 4096 tokens"))
    runner = runner_for([{"prompt": "word " * 400_000}, *prompts(15)], stub.url)
    runner.run(prepare)
    runner.run(generate)
    (reject,) = read_jsonl(runner.last.out / "rejects.jsonl")
    assert (reject["line"], reject["reason"]) == (1, "prompt_too_long")


def test_case_19_ids_lie_within_the_verifiers_vocabulary_not_its_tokenizers(prepared, tmp_path):
    (tmp_path / "verifier" / "tokenizer.json").write_text(
        json.dumps({"added_tokens": [], "model": {"vocab": {f"t{n}": n for n in range(500)}}})
    )
    rows = [{"input_ids": [5, 6, last], "loss_mask": [0, 1, 1]} for last in (505, VOCAB - 1, VOCAB, -1)]
    _, kept, rejects = prepared(rows, generate=False)
    assert {line: row.input_ids[-1] for line, row in kept.items()} == {1: 505, 2: 511}
    assert rejects == {3: "bad_token_id", 4: "bad_token_id"}


def test_rows_of_several_files_are_named_by_source_and_counted_by_source(runner_for, tmp_path):
    math = write_rows(tmp_path / "math.jsonl", [{"prompt": f"sum {n}"} for n in range(20)])
    code = write_rows(tmp_path / "code.jsonl", [{"prompt": f"code {n}"} for n in range(20)] + ["{"])
    folder = write_dataset(tmp_path / "ds_mixed", math, code, weights=(2.0, 1.0))
    runner = runner_for(folder, limit=15)
    summary = runner.run(prepare)
    assert summary["sources"] == {"math": {"train": 8, "val": 2}, "code": {"train": 4, "val": 1}}
    assert summary["rejected"] == {"not_json": 1, "over_quota": 25}
    rejects = read_jsonl(runner.last.out / "rejects.jsonl")
    assert [item["line"] for item in rejects if item["reason"] == "not_json" and item["source"] == "code"] == [21]
    assert [(item["source"], item["line"]) for item in rejects] == sorted(
        ((item["source"], item["line"]) for item in rejects), key=lambda place: (place[0] == "code", place[1])
    )


def test_an_equal_seed_gives_equal_bytes_and_another_one_another_split(runner_for):
    def files(seed):
        runner = runner_for(prompts(30), seed=seed)
        runner.run(prepare)
        return {file.name: file.read_bytes() for file in runner.last.out.iterdir()}

    assert files(1) == files(1)
    assert files(1) != files(2)


def test_a_job_that_generates_refuses_token_ids_and_says_what_to_change(runner_for):
    with pytest.raises(UserError, match=r"2 pretokenised; first: line 1 .*data\.generate to false"):
        runner_for([tokens(5, 5), tokens(6, 5)]).run(prepare)


def test_damage_is_the_users_error_and_names_the_file(runner_for, tmp_path):
    good = write_rows(tmp_path / "good.jsonl", prompts(5))
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b"\x1f\x8b\x08\0" + bytes(20))
    with pytest.raises(UserError, match=r"^bad, near byte 1: the gzip data is damaged"):
        runner_for(write_dataset(tmp_path / "ds_bad", good, bad)).run(prepare)
