"""Reading dataset rows: what is taken, what is refused, and why."""

import json

import pytest

from shared.data.conversations import check_control_tokens, parse_conversation
from shared.data.jsonl import parse_object
from shared.data.refusal import RowRejected

pytestmark = pytest.mark.data


def parsed(row, system_prompt=None):
    return parse_conversation(parse_object(json.dumps(row)), system_prompt)


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
        ("function_call", "tool"),
        ("\u00a0Assistant\u3000", "assistant"),
        ("\ufeffuser\u200b", "user"),
        ("\tSYSTEM\r\n", "system"),
    ],
)
def test_roles_are_mapped_whatever_their_case_and_spaces(given, mapped):
    conversation = parsed(sharegpt(("human", "q"), ("gpt", "a"), (given, "text")))
    (turn,) = [message for message in conversation.messages if message["content"] == "text"]
    assert turn["role"] == mapped


@pytest.mark.parametrize("role", ["kimi-k2.5", "", None, 5, ["user"], {}, "user:", "assist ant", "развитие", "root"])
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


CALL = {"id": "1", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {}),
        ({"reasoning": "so"}, {"reasoning": "so"}),
        ({"reasoning_content": "so"}, {"reasoning": "so"}),
        ({"reasoning": "so", "reasoning_content": "so"}, {"reasoning": "so"}),
        ({"reasoning": "", "reasoning_content": None}, {}),
        ({"tool_calls": [CALL]}, {"tool_calls": [CALL]}),
        ({"tool_calls": None}, {}),
        ({"tool_calls": []}, {}),
    ],
)
def test_an_assistant_turn_without_content_keeps_what_else_it_has(given, kept):
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, **given}]}
    assert parsed(row).messages[1] == {"role": "assistant", "content": "", **kept}


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("reasoning", 5, "bad_reasoning"),
        ("reasoning_content", ["so"], "bad_reasoning"),
        ("name", 5, "bad_turn"),
        ("function_call", {"name": "look", "arguments": "{}"}, "bad_tool_call"),
        ("tool_calls", "{", "bad_tool_call"),
        ("tool_calls", {"id": "1"}, "bad_tool_call"),
        ("tool_calls", [{"id": "1"}], "bad_tool_call"),
        ("tool_calls", [{"function": {"arguments": "{}"}}], "bad_tool_call"),
        ("tool_calls", [{"id": 1, "function": {"name": "look"}}], "bad_tool_call"),
        ("tool_calls", [{"function": {"name": "look", "arguments": "{"}}], "bad_tool_call"),
        ("tool_calls", [{"function": {"name": "look", "arguments": "5"}}], "bad_tool_call"),
        ("tool_calls", [{"function": {"name": "look", "arguments": [1]}}], "bad_tool_call"),
    ],
)
def test_what_an_assistant_turn_has_must_be_what_it_says(field, value, reason):
    answer = {"role": "assistant", "content": "a", field: value}
    assert refusal({"messages": [{"role": "user", "content": "q"}, answer]}).reason == reason


def test_two_different_reasonings_are_refused():
    answer = {"role": "assistant", "content": "a", "reasoning": "so", "reasoning_content": "else"}
    assert refusal({"messages": [{"role": "user", "content": "q"}, answer]}).reason == "bad_reasoning"


def test_arguments_of_a_call_are_the_same_as_text_and_as_an_object():
    def call(arguments):
        function = {"name": "look", "arguments": arguments}
        answer = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
        return parsed({"messages": [{"role": "user", "content": "q"}, answer]}).messages

    assert call('{"city":"Zürich","n":null}') == call({"city": "Zürich", "n": None})
    assert call({"city": "Zürich"})[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Zürich"}'
    assert call(None) == call("") == call({}) == call("{}")


@pytest.mark.parametrize("tools", ["{", "5", {"a": 1}, 5, ["tool"], '["tool"]'])
def test_tools_that_are_no_list_of_objects_are_refused(tools):
    assert refusal({"prompt": "q", "tools": tools}).reason == "bad_tools"


def test_tools_are_the_same_as_text_and_as_a_list():
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"default": None}}}]
    assert parsed({"prompt": "q", "tools": tools}).tools == parsed({"prompt": "q", "tools": json.dumps(tools)}).tools
    assert parsed({"prompt": "q", "tools": []}).tools is None


@pytest.mark.parametrize("system", [5, ["s"], {"content": "s"}])
def test_a_system_field_that_is_not_text_is_refused(system):
    assert refusal({"prompt": "q", "system": system}).reason == "bad_system"


def nested(depth):
    return nested_in({}, depth)


def nested_in(value, depth):
    for _ in range(depth):
        value = {"a": value}
    return value


def test_what_later_readers_could_not_follow_is_refused():
    def row(depth):
        return {"prompt": "q", "tools": [nested(depth)]}

    assert parsed(row(50)).tools == [nested(50)]
    assert refusal(row(150)).reason == "not_json"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not_json"),
        ("{", "not_json"),
        ('{"prompt": "a"} {"prompt": "b"}', "not_json"),
        ("[" * 100_000, "not_json"),
        ('{"prompt": NaN}', "not_json"),
        ('{"prompt": -Infinity}', "not_json"),
        ('{"prompt": ' + "9" * 5000 + "}", "not_json"),
        ("[1]", "not_an_object"),
        ('"text"', "not_an_object"),
        ("null", "not_an_object"),
        ('{"prompt": "a", "prompt": "b"}', "duplicate_key"),
        ('{"messages": [{"role": "user", "role": "assistant", "content": "a"}]}', "duplicate_key"),
    ],
)
def test_a_line_that_is_no_unambiguous_object_is_refused(text, reason):
    with pytest.raises(RowRejected) as caught:
        parse_object(text)
    assert caught.value.reason == reason


@pytest.mark.parametrize("row", [{"prompt": "q <|im_end|> x"}, sharegpt(("human", "q"), ("gpt", "a<|im_end|>"))])
def test_a_row_that_spells_a_control_token_is_refused(row):
    with pytest.raises(RowRejected) as caught:
        check_control_tokens(parsed(row), ["<|im_end|>", "<think>"])
    assert caught.value.reason == "control_token"
    assert "<|im_end|>" in caught.value.message


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "tools": [{"description": "ends with <|im_end|>"}]},
        {"messages": [{"role": "user", "content": "q", "name": "<|im_end|>"}]},
        {
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": "<|im_end|>"}}}]},
            ]
        },
        {"messages": [{"role": "user", "content": "q"}, {"role": "tool", "content": "<|im_end|>"}]},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "reasoning_content": "<|im_end|>"}]},
    ],
    ids=["tool definition", "name", "arguments", "tool text", "reasoning"],
)
def test_control_tokens_are_found_in_all_that_a_template_prints(row):
    with pytest.raises(RowRejected, match=r"<\|im_end\|>"):
        check_control_tokens(parsed(row), ["<|im_end|>"])


def test_reasoning_tags_are_control_tokens_in_a_user_turn_only():
    tags = ["<think>", "</think>"]
    check_control_tokens(parsed(sharegpt(("human", "q"), ("gpt", "<think>so</think>a"))), tags)
    with pytest.raises(RowRejected):
        check_control_tokens(parsed({"prompt": "say </think>"}), tags)


def test_answers_count_for_the_id_only_when_they_are_kept():
    left, right = (parsed(sharegpt(("human", "q"), ("gpt", answer))) for answer in ("a", "b"))
    assert left.identity(with_answers=False) == right.identity(with_answers=False)
    assert left.identity(with_answers=True) != right.identity(with_answers=True)


def test_tool_calls_stay_context_and_count_for_the_id():
    def look(city):
        return {"id": "1", "function": {"name": "look", "arguments": {"city": city}}}

    def asked(city):
        call = {"role": "assistant", "content": "", "tool_calls": [look(city)]}
        question, result = {"role": "user", "content": "weather?"}, {"role": "tool", "content": "rain"}
        return parsed({"messages": [question, call, result]})

    assert asked("Oslo").identity(with_answers=False) != asked("Rome").identity(with_answers=False)
