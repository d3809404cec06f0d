"""Masks of existing answers by chat templates of several manners: what is read, what is written, what is refused."""

import asyncio

import pytest

from shared.data.control_tokens import end_token_ids
from shared.data.refusal import RowRejected
from shared.data.rendering import TurnRenderer, spoken
from shared.presets import TINY_VERIFIER
from tests.support.tiny_tokenizer import TinyTokenizer

pytestmark = pytest.mark.data

TINY = TinyTokenizer()
END = "<|im_end|>"
QUESTION = [{"role": "user", "content": "is it?"}]
ANSWER = {"role": "assistant", "content": "yes"}
THOUGHT = {**ANSWER, "reasoning": "so"}


class Template:
    """A template by its parts; `tokenize` renders with it and encodes with the tiny verifier's tokenizer."""

    opening, no_thought, trailer, bos = "<think>", "<think></think>", "", ""

    def thought(self, reasoning, closing):
        """How an answer's reasoning is shown; Kimi's way: not at all once the turn is closed."""
        return "<think></think>"

    def content(self, text):
        return text

    def render(self, body):
        text, messages = self.bos, body["messages"]
        for place, message in enumerate(messages):
            text += f"<|im_{message['role']}|>"
            if message["role"] == "assistant":
                text += self.thought(message.get("reasoning"), place == len(messages) - 1)
            text += self.content(message["content"]) + END + self.trailer
        if body["add_generation_prompt"]:
            thinking = body["chat_template_kwargs"]["thinking"]
            text += "<|im_assistant|>" + (self.opening if thinking else self.no_thought)
        return text

    async def tokenize(self, body):
        return TINY.encode(body["prompt"] if "prompt" in body else self.render(body))


class KeepsReasoning(Template):
    """As Qwen's: reasoning is shown in the last turn; the model opens it itself; a line break follows each turn."""

    opening, no_thought, trailer = "", "<think>\n\n</think>\n\n", "\n"

    def thought(self, reasoning, closing):
        return f"<think>\n{reasoning or ''}\n</think>\n\n" if closing else ""


class DropsReasoning(Template):
    """Shows no reasoning, and does not open it either: nobody can tell where it would stand."""

    opening, no_thought = "", ""

    def thought(self, reasoning, closing):
        return ""


class Strips(Template):
    def content(self, text):
        return text.strip()


class Numbers(Template):
    """Shows how many turns there are, so that every rendering begins differently."""

    def render(self, body):
        return str(len(body["messages"])) + super().render(body)


def render(template, answer, history=QUESTION, tokenize=None):
    renderer = TurnRenderer(tokenize or template.tokenize, end_token_ids(TINY_VERIFIER))
    return asyncio.run(renderer.render(list(history), answer))


def texts(turn):
    return TINY.decode(turn.prompt_ids), TINY.decode(turn.answer_ids)


@pytest.mark.parametrize(
    ("template", "answer", "read", "written"),
    [
        (Template(), ANSWER, "<|im_assistant|><think></think>", "yes<|im_end|>"),
        (Template(), THOUGHT, "<|im_assistant|><think>", "so</think>yes<|im_end|>"),
        (KeepsReasoning(), ANSWER, "<|im_assistant|><think>\n\n</think>\n\n", "yes<|im_end|>"),
        (KeepsReasoning(), THOUGHT, "<|im_assistant|>", "<think>\nso\n</think>\n\nyes<|im_end|>"),
        (DropsReasoning(), ANSWER, "<|im_assistant|>", "yes<|im_end|>"),
        (Strips(), {**ANSWER, "content": " yes \n"}, "<think></think>", "yes<|im_end|>"),
        (Template(), {**ANSWER, "content": " yes \n"}, "<think></think>", " yes \n<|im_end|>"),
        (Template(), {"role": "assistant", "content": "<think>so</think>yes"}, "<think>", "so</think>yes<|im_end|>"),
    ],
)
def test_what_the_template_opens_is_read_and_all_up_to_the_end_of_turn_is_written(template, answer, read, written):
    before, after = texts(render(template, answer))
    assert before.endswith(read)
    assert after == written


def test_a_beginning_of_text_is_read():
    template = Template()
    template.bos = "[BOS]"
    assert texts(render(template, ANSWER))[0].startswith("[BOS]<|im_user|>")


def test_reasoning_of_earlier_turns_is_in_the_prompt_only_where_the_template_keeps_it():
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    history = [
        *QUESTION,
        spoken("first", "settled thought"),
        *QUESTION,
        spoken("", "open thought", [call]),
        {"role": "tool", "content": "found", "tool_call_id": "c"},
    ]
    turn = render(TINY, {**THOUGHT, "content": "then yes"}, history)
    before, after = texts(turn)
    assert "settled thought" not in before
    assert "<think>open thought</think><|tool_calls_section_begin|>" in before
    assert after == "so</think>then yes<|im_end|>"


def test_a_turn_that_only_calls_tools_is_learnt_with_its_calls():
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    _, after = texts(render(TINY, {"role": "assistant", "content": "", "reasoning": "so", "tool_calls": [call]}))
    assert after.startswith("so</think><|tool_calls_section_begin|><|tool_call_begin|>c")
    assert after.endswith("<|tool_calls_section_end|><|im_end|>")


@pytest.mark.parametrize(
    ("template", "answer", "reason"),
    [
        (Numbers(), ANSWER, "template_mismatch"),
        (DropsReasoning(), THOUGHT, "reasoning_dropped"),
        (Template(), {**ANSWER, "content": None}, "empty_answer"),
        (Template(), {**ANSWER, "content": " \n"}, "empty_answer"),
        (Template(), {**ANSWER, "content": "", "reasoning": "half a"}, "empty_answer"),
        (Template(), {**ANSWER, "content": "<think>half a"}, "empty_answer"),
    ],
)
def test_a_turn_whose_renderings_do_not_fit_or_that_says_nothing_is_refused(template, answer, reason):
    with pytest.raises(RowRejected) as refused:
        render(template, answer)
    assert refused.value.reason == reason


def test_a_template_without_marks_of_generation_is_no_hindrance():
    text = (TINY_VERIFIER / "chat_template.jinja").read_text(encoding="utf-8")
    assert "generation %}" not in text.replace("add_generation_prompt", "")
    assert render(TINY, ANSWER).answer_ids
