"""Masks of answers that a dataset already has: a turn rendered with and without it, by the verifier's own template.

In: the messages before an assistant turn, and the turn. Out: the ids that the verifier would have read before it, and
those that it would have written: reasoning, closing tag, answer, tool calls, end of turn. What the template opens
itself (`<think>`) belongs to the former; what it adds after the end of a turn belongs to neither. Text is never
searched for: ids are compared with ids, and a turn whose two renderings do not fit is refused.

The worker masks rows with it, the gateway shows them with it: both give it a callable that posts to the verifier's
`/tokenize`.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from shared.data.refusal import RowRejected

Message = dict[str, Any]
Tokenize = Callable[[dict[str, Any]], Awaitable[list[int]]]
OPENING, CLOSING = "<think>", "</think>"


@dataclass(frozen=True)
class RenderedTurn:
    """One assistant turn as token ids.

    Attributes:
        prompt_ids: what the verifier reads before it speaks.
        answer_ids: what it would have written, end of turn included.
        content, reasoning: the same as text, without tags.
    """

    prompt_ids: list[int]
    answer_ids: list[int]
    content: str
    reasoning: str


class TurnRenderer:
    """Renders turns by one verifier's template.

    Args:
        tokenize: posts a body (without `model`) to `/tokenize` and returns the `tokens` of the answer.
        end_ids: ids that end a turn, see `shared.data.control_tokens.end_token_ids`.
    """

    def __init__(self, tokenize: Tokenize, end_ids: Iterable[int]) -> None:
        self.tokenize, self.end_ids = tokenize, frozenset(end_ids)
        self._tags: tuple[list[int], list[int]] | None = None

    async def render(self, history: list[Message], answer: Message, tools: list[Any] | None = None) -> RenderedTurn:
        """Split one turn into what is read and what is written.

        Args:
            history: the messages before the turn.
            answer: the assistant's message.

        Raises:
            RowRejected: the answer is empty, or the renderings do not fit.
        """
        content, reasoning = split_reasoning(answer)
        calls = answer.get("tool_calls") or []
        if not content.strip() and not calls:
            message = "half a thought is not an answer" if reasoning else "the answer is empty"
            raise RowRejected("empty_answer", message)
        turn = _Turn(self.tokenize, tools, thinking=bool(reasoning))
        prompt = await turn.prompt(history)
        written = await self._written(turn, prompt, history, spoken(content, reasoning, calls))
        return RenderedTurn(prompt, self._up_to_the_end(written), content, reasoning)

    async def _written(self, turn: "_Turn", prompt: list[int], history: list[Message], answer: Message) -> list[int]:
        """The ids after the prompt, as the template renders them, or put together where it drops reasoning."""
        plain_history, plain_answer = [_plain(message) for message in history], _plain(answer)
        whole = await turn.whole(history, answer)
        unreasoned = whole if plain_answer == answer else await turn.whole(history, plain_answer)
        if _fits(prompt, whole) and (plain_answer == answer or whole != unreasoned):
            return whole[len(prompt) :]
        # The template drops reasoning of a turn that is answered, which the verifier keeps while it speaks.
        plain_prompt, plain_whole = prompt, unreasoned
        if plain_history != history:
            plain_prompt = await turn.prompt(plain_history)
            plain_whole = await turn.whole(plain_history, plain_answer)
        if not _fits(plain_prompt, plain_whole) or plain_prompt[-1:] != prompt[-1:]:
            raise RowRejected("template_mismatch", "rendered with and without the answer, the prompts differ")
        written = plain_whole[len(plain_prompt) :]
        return written if plain_answer == answer else await self._with_reasoning(answer["reasoning"], prompt, written)

    async def _with_reasoning(self, reasoning: str, prompt: list[int], written: list[int]) -> list[int]:
        """Put reasoning between the tag that the prompt ends with and the one that the answer begins with."""
        if self._tags is None:
            self._tags = await self.tokenize(text_body(OPENING)), await self.tokenize(text_body(CLOSING))
        opening, closing = self._tags
        if len(opening) != 1 or len(closing) != 1 or prompt[-1:] != opening or written[:1] != closing:
            raise RowRejected("reasoning_dropped", "the verifier's chat template drops the answer's reasoning")
        return [*await self.tokenize(text_body(reasoning)), *written]

    def _up_to_the_end(self, written: list[int]) -> list[int]:
        """Without what the template adds after the end of the turn, such as a line break: the verifier stops there."""
        end = len(written)
        while end and written[end - 1] not in self.end_ids:
            end -= 1
        while end > 1 and written[end - 2] in self.end_ids:
            end -= 1
        return written[:end] if end else written


class _Turn:
    """The requests for one turn."""

    def __init__(self, tokenize: Tokenize, tools: list[Any] | None, *, thinking: bool) -> None:
        self.tokenize, self.tools, self.thinking = tokenize, tools, thinking

    async def prompt(self, history: list[Message]) -> list[int]:
        body = chat_body(history, self.tools, thinking=self.thinking, generation_prompt=True)
        return await self.tokenize(body)

    async def whole(self, history: list[Message], answer: Message) -> list[int]:
        body = chat_body([*history, answer], self.tools, thinking=self.thinking, generation_prompt=False)
        return await self.tokenize(body)


def chat_body(
    messages: list[Message], tools: list[Any] | None, *, thinking: bool, generation_prompt: bool
) -> dict[str, Any]:
    """The body of a `/tokenize` request for a conversation, as `/v1/chat/completions` would render it."""
    body: dict[str, Any] = {
        "messages": messages,
        "add_generation_prompt": generation_prompt,
        "add_special_tokens": False,
        "chat_template_kwargs": {"thinking": thinking},
    }
    return {**body, "tools": tools} if tools else body


def text_body(text: str) -> dict[str, Any]:
    """The body of a `/tokenize` request for bare text."""
    return {"prompt": text, "add_special_tokens": False}


def spoken(content: str, reasoning: str = "", tool_calls: list[Any] | None = None) -> Message:
    """An assistant turn as a message; the template decides what of its reasoning stays in a later prompt."""
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return {**message, "tool_calls": tool_calls} if tool_calls else message


def split_reasoning(message: Message) -> tuple[str, str]:
    """Split an assistant message into answer and reasoning, whoever split it before: parser, template or nobody.

    Text without tags stays as it is; blanks next to tags go with them.
    """
    given = message.get("content")
    content = given if isinstance(given, str) else ""
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    if CLOSING in content:
        before, _, after = content.rpartition(CLOSING)
        content, reasoning = after.lstrip(), reasoning or before.strip()
    elif content.lstrip().startswith(OPENING):
        content, reasoning = "", reasoning or content  # half a thought is not an answer
    reasoning = str(reasoning)
    if OPENING in reasoning or CLOSING in reasoning:
        reasoning = reasoning.replace(OPENING, "").replace(CLOSING, "").strip()
    return content, reasoning if reasoning.strip() else ""


def _plain(message: Message) -> Message:
    return {name: value for name, value in message.items() if name not in ("reasoning", "reasoning_content")}


def _fits(prompt: list[int], whole: list[int]) -> bool:
    return len(whole) > len(prompt) and whole[: len(prompt)] == prompt
