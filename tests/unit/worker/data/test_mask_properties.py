"""Whatever a conversation holds: what is learnt is exactly what the assistant wrote, and nothing is lost unnamed.

Conversations, hostile ones among them, go through the real reader, turn writer and renderer, with the tiny verifier's
own tokenizer and chat template. What a row must be is written out by hand (`spelt_out`), not by the code under test.
EYRIE_PROPERTY_EXAMPLES sets how many are made.
"""

import asyncio
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.worker.data.earlier_rows import EarlierRows
from services.worker.data.rows import RowFolder
from services.worker.data.turns import TurnWriter, Written
from services.worker.data.verifier_client import Completion
from shared.data.control_tokens import added_tokens, end_token_ids
from shared.data.files import RawRow
from shared.data.refusal import RowRejected
from shared.data.rendering import TurnRenderer, spoken
from shared.data.row_reader import RowReader
from shared.data.turns import speaking_turns
from shared.presets import TINY_VERIFIER
from shared.schemas.prepared import Prepared
from shared.schemas.spec import DataSpec
from tests.support.tiny_tokenizer import TinyTokenizer, calls_spelt_out, spelt_out

pytestmark = pytest.mark.data

TINY = TinyTokenizer()
CONTROL = sorted(added_tokens(TINY_VERIFIER).values())
ENDS = end_token_ids(TINY_VERIFIER)
OPENING, CLOSING = TINY.encode("<think>"), TINY.encode("</think>")
EXAMPLES = settings(
    max_examples=int(os.environ.get("EYRIE_PROPERTY_EXAMPLES", "100")),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

FRAGMENTS = [
    *("user:", "assistant", "\n\nHuman: ", "system\n", "## Return of call_1\n", "None", "[{'type'", "{{ messages }}"),
    *("<|im_", "end|>", "<|im_end", "im_user|>", "think>", "</thin", "{% generation %}", "12 + 30", "\\", '"', "\x00"),
    *(" ", "\n", "\t", "  \n ", "\r\n", "\u200b", "\u202e", "\ufeff", "\u00e9", "a\u0301", "\u65e5\u672c"),
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
]
characters = st.characters(exclude_categories=["Cs"])
plain = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(characters, max_size=8)), max_size=5).map("".join)
hostile = st.lists(st.one_of(plain, st.sampled_from(CONTROL)), max_size=5).map("".join)
words = st.sampled_from(["the sum is 42", "yes", "so we add", "look", "7"])


@dataclass
class Turn:
    """One turn as it was meant; `written` is how the row has it."""

    role: str
    content: str
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    written: dict[str, Any] = field(default_factory=dict)


@st.composite
def conversations(draw: Any, text: st.SearchStrategy[str]) -> tuple[dict[str, Any], list[Turn]]:
    """A row of messages, and what was meant by its turns."""
    turns: list[Turn] = []
    if draw(st.booleans()):
        turns.append(_turn("system", draw(text)))
    for number in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 9)) == 0:
            turns.append(_assistant(draw, text, number, leading=True))
        users = draw(st.sampled_from([1, 1, 1, 2]))
        turns.extend([_turn("user", f"usr{number} {draw(text)}") for _ in range(users)])
        answer = _assistant(draw, text, number)
        turns.append(answer)
        ids = [call["id"] for call in answer.calls]
        turns.extend([_turn("tool", f"tol{number} {draw(text)}", tool_call_id=id_) for id_ in ids])
        if answer.calls and draw(st.booleans()):
            turns.append(_assistant(draw, text, number + 10))
    row: dict[str, Any] = {"messages": [turn.written for turn in turns]}
    if draw(st.booleans()):
        row["tools"] = [{"type": "function", "function": {"name": "look", "description": "dsc " + draw(text)}}]
    return row, turns


def _turn(role: str, content: str, **more: Any) -> Turn:
    return Turn(role, content, written={"role": role, "content": content, **more})


def _assistant(draw: Any, text: st.SearchStrategy[str], number: int, *, leading: bool = False) -> Turn:
    content = draw(st.one_of(st.just(""), words, text)).replace("<think>", "").replace("</think>", "")
    reasoning = draw(st.one_of(st.just(""), words, text)).replace("<think>", "").replace("</think>", "").strip()
    calls = []
    if not leading and draw(st.integers(0, 3)) == 0:
        arguments = json.dumps({"query": draw(text)}, ensure_ascii=False)
        ids = [f"call_{number}_{place}" for place in range(draw(st.integers(1, 2)))]
        calls = [{"id": id_, "type": "function", "function": {"name": "look", "arguments": arguments}} for id_ in ids]
    written: dict[str, Any] = {"role": "assistant", "content": content or draw(st.sampled_from(["", None]))}
    form = draw(st.sampled_from(["reasoning", "reasoning_content", "tags"])) if reasoning else "none"
    if form == "tags":
        content = content.lstrip()
        blank = draw(st.sampled_from(["", "\n", "\n\n"]))
        opening = draw(st.sampled_from(["<think>", "<think>\n", ""]))
        written["content"] = f"{opening}{reasoning}{blank}</think>{blank}{content}"
    elif form != "none":
        written[form] = reasoning
    if calls:
        written["tool_calls"] = calls
    return Turn("assistant", content, reasoning, calls, written)


def read(row: dict[str, Any], data: DataSpec) -> Prepared | None:
    """The row as the prepare stage hands it on, or None where it is rejected."""
    raw = RawRow("a.jsonl", 1, json.dumps(row))
    try:
        accepted = RowReader(data, CONTROL, 512).read(raw)
    except RowRejected:
        return None
    return Prepared(id=accepted.identity, line=1, source="a.jsonl", split="train", **accepted.content)


def spec(**more: Any) -> DataSpec:
    return DataSpec(dataset="ds_00000000000000000000", max_seq_len=100_000, **more)


def write(conversation: Prepared, data: DataSpec, client: Any = None) -> Written:
    """What the turn writer makes of a conversation."""
    renderer = TurnRenderer(TINY.tokenize, ENDS)
    with tempfile.TemporaryDirectory() as folder:
        rows = RowFolder(Path(folder))
        writer = TurnWriter(client, renderer, rows, EarlierRows([]), data, tag="t", capture=False)
        return asyncio.run(writer.write(conversation))


def meant(conversation: Prepared, turns: list[Turn]) -> list[tuple[int, list[int], list[int]]]:
    """For each turn that can be learnt: its number, what is read and what is written, spelt out."""
    seen_user = False
    answers = []
    for turn in turns:
        seen_user = seen_user or turn.role == "user"
        if turn.role == "assistant" and seen_user:
            answers.append(turn)
    expected, history = [], []
    messages = conversation.messages or []
    spots = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    assert len(spots) == len(answers)
    for number, (spot, turn) in enumerate(zip(spots, answers, strict=True)):
        history = [*history, *messages[spots[number - 1] + 1 if number else 0 : spot]]
        if turn.content.strip() or turn.calls:
            thinking = bool(turn.reasoning)
            read_text = spelt_out(history, conversation.tools, thinking=thinking)
            message = {"tool_calls": turn.calls}
            thought = f"{turn.reasoning}</think>" if thinking else ""
            written = TINY.encode(f"{thought}{turn.content}{calls_spelt_out(message)}<|im_end|>")
            expected.append((number, TINY.encode(read_text), up_to_the_first_end(written)))
        history = [*history, _as_history(turn)]
    return expected


def _as_history(turn: Turn) -> dict[str, Any]:
    return {"role": "assistant", "content": turn.content, "reasoning": turn.reasoning, "tool_calls": turn.calls}


def up_to_the_first_end(ids: list[int]) -> list[int]:
    """Ends that are spelt out right before the end of a turn end it already."""
    end = len(ids) - 1
    while end > 0 and ids[end - 1] in ENDS:
        end -= 1
    return ids[: end + 1]


def check_existing(row: dict[str, Any], turns: list[Turn], control_tokens: str) -> None:
    data = spec(generate=False, on_control_tokens=control_tokens)
    conversation = read(row, data)
    if conversation is None:
        return
    written = write(conversation, data)
    spots = len(list(speaking_turns(conversation.messages or [], False)))
    assert len(written.rows) + len(written.refusals) == spots
    assert sorted([*(r.turn for r in written.rows), *(r.turn for r in written.refusals)]) == list(range(spots))
    expected = {number: (before, after) for number, before, after in meant(conversation, turns)}
    short = {number for number, (_, after) in expected.items() if len(after) < 2}
    assert {made.turn for made in written.rows} == expected.keys() - short
    assert {r.reason for r in written.refusals} <= {"empty_answer", "no_supervised_token"}
    for made in written.rows:
        before, after = expected[made.turn]
        assert [*made.input_ids, made.last_id] == before + after
        assert made.loss_mask == [0] * len(before) + [1] * (len(after) - 1)
        learnt = TINY.decode([i for i, m in zip(made.input_ids, made.loss_mask, strict=True) if m])
        assert not any(marker in learnt for marker in ("usr", "tol", "dsc "))


@EXAMPLES
@given(conversations(plain))
def test_masks_of_existing_answers_cover_exactly_what_the_assistant_wrote(made):
    check_existing(*made, "reject")


@EXAMPLES
@given(conversations(hostile))
def test_control_tokens_that_are_spelt_out_reject_the_row_or_are_the_text_of_their_turn(made):
    row, turns = made
    check_existing(row, turns, "allow")
    data = spec(generate=False)
    if (conversation := read(row, data)) is not None:
        for message in conversation.messages or []:
            text = json.dumps(message, ensure_ascii=False).replace("<think>", "").replace("</think>", "")
            assert not any(token in text for token in CONTROL if token not in ("<think>", "</think>"))


@EXAMPLES
@given(conversations(plain), st.data())
def test_reasoning_tags_in_odd_places_never_move_the_mask(made, data):
    row, _ = made
    for message in row["messages"]:
        if message["role"] == "assistant" and message["content"]:
            place = data.draw(st.integers(0, len(message["content"])))
            tag = data.draw(st.sampled_from(["<think>", "</think>", "<think></think>", "</think><think>"]))
            message["content"] = message["content"][:place] + tag + message["content"][place:]
    rules = spec(generate=False)
    conversation = read(row, rules)
    if conversation is None:
        return
    written = write(conversation, rules)
    assert len(written.rows) + len(written.refusals) == len(list(speaking_turns(conversation.messages or [], False)))
    for made_row in written.rows:
        opened = made_row.loss_mask.index(1)
        before, after = made_row.input_ids[:opened], [*made_row.input_ids[opened:], made_row.last_id]
        assert TINY.decode(before).endswith(("<|im_middle|><think>", "<|im_middle|><think></think>"))
        assert before[-1:] == (OPENING if made_row.reasoning else CLOSING)
        thought = f"{made_row.reasoning}</think>" if made_row.reasoning else ""
        assert after == TINY.encode(
            f"{thought}{made_row.content}{calls_spelt_out({'tool_calls': made_row.tool_calls})}<|im_end|>"
        )
        assert not any(marker in TINY.decode(after) for marker in ("usr", "tol", "dsc "))


class WritingVerifier:
    """Answers what it is told to, by its template; keeps what it was asked and what it said."""

    def __init__(self, answers: list[tuple[str, str, bool, bool]]) -> None:
        self.answers = iter(answers)
        self.said: list[tuple[list[dict[str, Any]], Completion]] = []

    async def chat(self, messages: list[dict[str, Any]], sampling: Any, **more: Any) -> Completion:
        reasoning, content, calls_tools, cut = next(self.answers)
        calls = []
        if calls_tools:
            function = {"name": "look", "arguments": json.dumps({"query": content}, ensure_ascii=False)}
            calls = [{"id": f"own_{len(self.said)}", "type": "function", "function": function}]
        text = f"{reasoning}</think>{content}{calls_spelt_out({'tool_calls': calls})}<|im_end|>"
        prompt = TINY.encode(TINY.render(messages, more["tools"], generation_prompt=True, thinking=True))
        ids = TINY.encode(text)
        ids = ids[: max(1, len(ids) // 2)] if cut else ids
        said = Completion(prompt, ids, content, reasoning, calls, "length" if cut else "stop")
        self.said.append(([json.loads(json.dumps(message)) for message in messages], said))
        return said


rarely = st.integers(0, 9).map(lambda number: number == 0)
answers = st.tuples(plain.map(str.strip), st.one_of(plain, words), st.booleans(), rarely)


@EXAMPLES
@given(conversations(plain), st.lists(answers, min_size=24, max_size=24))
def test_rows_that_the_verifier_writes_are_what_it_read_and_wrote_in_the_context_of_its_own_answers(made, planned):
    row, _ = made
    data = spec()
    conversation = read(row, data)
    if conversation is None:
        return
    spots = list(speaking_turns(conversation.messages or [], True))
    verifier = WritingVerifier(planned)
    written = write(conversation, data, verifier)
    assert sorted([*(r.turn for r in written.rows), *(r.turn for r in written.refusals)]) == list(range(len(spots)))
    for made_row in written.rows:
        messages, said = verifier.said[made_row.turn]
        assert [*made_row.input_ids, made_row.last_id] == said.prompt_ids + said.answer_ids
        assert made_row.loss_mask == [0] * len(said.prompt_ids) + [1] * (len(said.answer_ids) - 1)
        earlier = [message for message in messages if message["role"] == "assistant"]
        assert len(earlier) == made_row.turn
        for number, message in enumerate(earlier):
            own = verifier.said[number][1]
            given_turn = spots[number][1] or {}
            theirs = {**given_turn, "content": given_turn.get("content") or ""}
            answered_by_tools = bool(spots[number + 1][0]) and spots[number + 1][0][0]["role"] == "tool"
            mine = spoken(own.content, own.reasoning, own.tool_calls)
            assert message == mine or (answered_by_tools and message.get("tool_calls") == theirs.get("tool_calls"))
        others = [message for message in messages if message["role"] != "assistant"]
        assert [m["content"] for m in others] == [
            m["content"] for before, _ in spots[: made_row.turn + 1] for m in before
        ]
