"""Reading dataset rows: what is taken, what is refused, and why."""

import json

import pytest

from shared.data.conversations import (
    RowRejected,
    check_control_tokens,
    parse_row,
    read_lines,
    split_ids,
)


def parsed(row, system_prompt=None):
    return parse_row(1, json.dumps(row), system_prompt)


def sharegpt(*turns):
    return {"conversations": [{"from": role, "value": text} for role, text in turns]}


def spoken(conversation):
    return [(message["role"], message["content"]) for message in conversation.messages]


def refusal(row):
    with pytest.raises(RowRejected) as caught:
        parsed(row)
    return caught.value


def test_a_leading_assistant_turn_is_dropped_and_counted():
    conversation = parsed(sharegpt(("gpt", "hello"), ("human", "question"), ("gpt", "answer")))
    assert spoken(conversation) == [("user", "question"), ("assistant", "answer")]
    assert conversation.notes == {"leading_assistant_dropped": 1}


def test_user_turns_in_a_row_are_joined_by_a_blank_line_and_counted():
    conversation = parsed(sharegpt(("human", "one"), ("human", "two"), ("gpt", "answer")))
    assert spoken(conversation) == [("user", "one\n\ntwo"), ("assistant", "answer")]
    assert conversation.notes == {"user_turns_joined": 1}


def test_sharegpt_and_messages_give_the_same_conversation():
    pairs = [(f"question {n}", f"MARK{n}") for n in range(3)]
    given = [turn for pair in pairs for turn in zip(("human", "gpt"), pair, strict=True)]
    openai = [{"role": {"human": "user", "gpt": "assistant"}[role], "content": text} for role, text in given]
    left = parsed({"system": "be brief", **sharegpt(*given)})
    right = parsed({"system": "be brief", "messages": openai})
    assert left.messages == right.messages
    assert [message["content"] for message in left.messages].count("be brief") == 1
    assert left.identity(with_answers=True) == right.identity(with_answers=True)


def test_a_system_turn_is_not_doubled_by_a_system_field_or_prompt():
    row = {"system": "field", "messages": [{"role": "system", "content": "turn"}, {"role": "user", "content": "q"}]}
    assert spoken(parsed(row, "default")) == [("system", "turn"), ("user", "q")]


@pytest.mark.parametrize(
    ("given", "mapped"),
    [
        ("GPT", "assistant"),
        (" assistant ", "assistant"),
        ("model", "assistant"),
        ("Human", "user"),
        ("observation", "tool"),
        ("function", "tool"),
        ("TOOL", "tool"),
        ("function_call", "assistant"),
    ],
)
def test_roles_are_mapped_whatever_their_case_and_spaces(given, mapped):
    conversation = parsed(sharegpt(("human", "q"), ("gpt", "a"), (given, "text")))
    expected = [("user", "q"), ("assistant", "a"), (mapped, "text")]
    assert spoken(conversation) == expected


@pytest.mark.parametrize("role", ["kimi-k2.5", "", None, 5])
def test_any_other_role_is_refused_by_its_name(role):
    problem = refusal({"messages": [{"role": "user", "content": "q"}, {"role": role, "content": "a"}]})
    assert problem.reason == "unknown_role"
    assert repr(role) in problem.message
    assert "turn 2" in problem.message


def test_a_turn_without_a_role_is_refused():
    assert refusal({"messages": [{"content": "q"}]}).reason == "unknown_role"


def test_a_row_without_a_user_turn_is_refused():
    assert refusal(sharegpt(("gpt", "hello"))).reason == "no_user_turn"
    assert refusal({"messages": [{"role": "system", "content": "s"}]}).reason == "no_user_turn"


def test_content_as_text_and_as_one_text_part_are_the_same():
    part = [{"type": "text", "text": "question"}]
    plain = parsed({"messages": [{"role": "user", "content": "question"}]})
    assert parsed({"messages": [{"role": "user", "content": part}]}).messages == plain.messages


def test_several_text_parts_become_one_text():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert spoken(parsed({"messages": [{"role": "user", "content": parts}]})) == [("user", "one\ntwo")]


@pytest.mark.parametrize(
    "content", [7, 1.5, True, {"type": "text"}, [{"type": "image_url", "image_url": {}}], ["text"], [{"type": "text"}]]
)
def test_content_that_is_not_text_is_refused(content):
    assert refusal({"messages": [{"role": "user", "content": content}]}).reason == "bad_content"


@pytest.mark.parametrize(
    ("content", "reason"), [("", "empty_content"), ("  \n", "empty_content"), (None, "bad_content")]
)
def test_an_empty_user_turn_is_refused(content, reason):
    assert refusal({"messages": [{"role": "user", "content": content}]}).reason == reason


@pytest.mark.parametrize("extra", [{}, {"reasoning": "so"}, {"reasoning_content": "so"}, {"tool_calls": [{"id": "1"}]}])
def test_an_assistant_turn_without_content_is_an_empty_one(extra):
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, **extra}]}
    assert parsed(row).messages[1] == {"role": "assistant", "content": "", **extra}


@pytest.mark.parametrize("text", ["", "{", "[1]", '"text"', "null", "[" * 100_000])
def test_a_line_that_is_no_json_object_is_refused(text):
    with pytest.raises(RowRejected) as caught:
        parse_row(3, text)
    assert caught.value.reason in ("not_json", "not_an_object")


def test_a_line_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9"}\n')
    ((line, text),) = read_lines(path)
    with pytest.raises(RowRejected) as caught:
        parse_row(line, text)
    assert caught.value.reason == "not_utf8"


def test_half_a_character_is_refused_and_a_whole_one_is_not():
    with pytest.raises(RowRejected) as caught:
        parse_row(1, r'{"prompt": "a \ud83d b"}')
    assert caught.value.reason == "not_text"
    assert spoken(parse_row(1, r'{"prompt": "a \ud83d\ude00 b"}')) == [("user", "a 😀 b")]


@pytest.mark.parametrize("row", [{"prompt": "q <|im_end|> x"}, sharegpt(("human", "q"), ("gpt", "a<|im_end|>"))])
def test_a_row_that_spells_a_control_token_is_refused(row):
    with pytest.raises(RowRejected) as caught:
        check_control_tokens(parsed(row), ["<|im_end|>", "<think>"])
    assert caught.value.reason == "control_token"
    assert "<|im_end|>" in caught.value.message


def test_reasoning_tags_are_control_tokens_in_a_user_turn_only():
    tags = ["<think>", "</think>"]
    check_control_tokens(parsed(sharegpt(("human", "q"), ("gpt", "<think>so</think>a"))), tags)
    with pytest.raises(RowRejected):
        check_control_tokens(parsed({"prompt": "say </think>"}), tags)


def test_equal_conversations_have_equal_ids_wherever_they_stand():
    row = json.dumps(sharegpt(("human", "q"), ("gpt", "a")))
    assert parse_row(1, row).identity(with_answers=True) == parse_row(9, row).identity(with_answers=True)


def test_answers_count_for_the_id_only_when_they_are_kept():
    left, right = (parsed(sharegpt(("human", "q"), ("gpt", answer))) for answer in ("a", "b"))
    assert left.identity(with_answers=False) == right.identity(with_answers=False)
    assert left.identity(with_answers=True) != right.identity(with_answers=True)


def test_tool_calls_stay_context_and_count_for_the_id():
    def asked(city):
        call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": city}}]}
        question, result = {"role": "user", "content": "weather?"}, {"role": "tool", "content": "rain"}
        return parsed({"messages": [question, call, result]})

    assert asked("Oslo").identity(with_answers=False) != asked("Rome").identity(with_answers=False)


def test_blank_lines_are_skipped_and_line_numbers_stay_the_files(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\n{"prompt": "a"}\n  \t\r\n{"prompt": "b"}')
    assert list(read_lines(path)) == [(2, '{"prompt": "a"}'), (4, '{"prompt": "b"}')]


@pytest.mark.parametrize(
    "content", [b"", b"\xef\xbb\xbf", b"\n\r\n  \n"], ids=["empty", "byte-order mark", "blank lines"]
)
def test_a_file_without_rows_has_no_lines(tmp_path, content):
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    assert list(read_lines(path)) == []


def test_byte_order_mark_line_ends_and_a_missing_last_newline_change_nothing(tmp_path):
    rows = [b'{"prompt": "a"}', b'{"prompt": "b \xe2\x80\xa8 c", "id": 3}']
    variants = [
        b"\n".join(rows) + b"\n",
        b"\xef\xbb\xbf" + b"\n".join(rows) + b"\n",
        b"\r\n".join(rows),
        b"\n".join(rows),
    ]
    read = []
    for number, content in enumerate(variants):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(content)
        read.append(list(read_lines(path)))
    assert read == [read[0]] * len(variants)
    assert len(read[0]) == 2


@pytest.mark.parametrize("ratio", [0.01, 0.05, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.9, 0.999])
def test_a_split_has_the_exact_size_and_one_at_least_on_each_side(ratio):
    for n in range(2, 203):
        held_out = split_ids((f"c{i}" for i in range(n)), ratio, seed=1)
        assert len(held_out) == min(max(1, round(n * ratio)), n - 1)


def test_ten_at_a_fifth_give_eight_and_two():
    assert len(split_ids((str(i) for i in range(10)), 0.2, seed=0)) == 2


def test_a_split_depends_on_the_seed_and_not_on_the_order():
    ids = [f"c{i}" for i in range(50)]
    assert split_ids(ids, 0.2, seed=3) == split_ids(reversed(ids), 0.2, seed=3)
    assert split_ids(ids, 0.2, seed=3) != split_ids(ids, 0.2, seed=4)
