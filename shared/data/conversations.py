"""Reads dataset rows as conversations, by rules that never guess: a row is taken, or refused with its line and reason.

Three forms are read: `{"prompt": "..."}`, `{"messages": [...]}` (OpenAI) and `{"conversations": [...]}` (ShareGPT,
with `from` and `value`). Roles are mapped whatever their case and spaces; two user turns in a row are joined by a blank
line; assistant turns before the first user turn are dropped; both are counted.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
}
FORMS = ("messages", "conversations", "prompt")
TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
REASONING_TAGS = frozenset({"<think>", "</think>"})
KEPT_FIELDS = ("reasoning", "reasoning_content", "tool_calls", "tool_call_id", "name")
ID_CHARACTERS = 24  # 96 bits of SHA-256


class RowRejected(Exception):
    """A row cannot be used; `reason` is a short name for the count, the message says more."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


@dataclass
class Conversation:
    """One row, normalised.

    Attributes:
        line: in the file, counted from 1.
        messages: `role` and `content`, and what `KEPT_FIELDS` names.
        tools: tool definitions of the row, or None.
        notes: what was mended on the way, for the counts.
    """

    line: int
    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    notes: Counter[str] = field(default_factory=Counter)

    def identity(self, *, with_answers: bool) -> str:
        """A content hash: equal conversations have equal ids, wherever they stand in the file.

        Args:
            with_answers: whether assistant turns count; they do not when the verifier writes them anew (calls of tools
                stay as they are, and count).
        """
        messages = [m for m in self.messages if with_answers or m["role"] != "assistant" or m.get("tool_calls")]
        text = json.dumps([messages, self.tools], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:ID_CHARACTERS]


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the file's lines that are not blank, with their numbers; a byte-order mark and CR are dropped."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            text = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).strip()
            if text:
                yield number, text.decode("utf-8", "surrogateescape")


def parse_row(line: int, text: str, system_prompt: str | None = None) -> Conversation:
    """Read one line.

    Args:
        system_prompt: put first where the row has no system turn.

    Raises:
        RowRejected
    """
    row = _json_object(text)
    form = next((name for name in FORMS if row.get(name) is not None), None)
    if form is None:
        raise RowRejected("no_conversation", f"has none of the fields {', '.join(FORMS)}")
    conversation = Conversation(line, [], _tools(row))
    for message in _turns(row, form):
        _append(conversation, message)
    if not any(message["role"] == "user" for message in conversation.messages):
        raise RowRejected("no_user_turn", "has no user turn")
    system = row.get("system") if isinstance(row.get("system"), str) and row["system"].strip() else system_prompt
    if system and conversation.messages[0]["role"] != "system":
        conversation.messages.insert(0, {"role": "system", "content": system})
    _check_text(conversation)
    return conversation


def check_control_tokens(conversation: Conversation, control_tokens: Iterable[str]) -> None:
    """Refuse a conversation whose text spells out one of the verifier's control tokens.

    Reasoning tags in an assistant turn are none: many datasets keep the reasoning between them.

    Raises:
        RowRejected
    """
    tokens = list(control_tokens)
    for message in conversation.messages:
        texts = [message["content"], message.get("reasoning") or "", message.get("reasoning_content") or ""]
        for token in tokens:
            if message["role"] == "assistant" and token in REASONING_TAGS:
                continue
            if any(token in text for text in texts if isinstance(text, str)):
                raise RowRejected("control_token", f"a {message['role']} turn contains the control token {token}")


def split_ids(ids: Iterable[str], val_ratio: float, seed: int) -> set[str]:
    """Choose the conversations that are held out: exactly `round(n * val_ratio)` by hash rank, at least one a side."""
    ranked = sorted(set(ids), key=lambda item: hashlib.sha256(f"{seed}:{item}".encode()).digest())
    count = min(max(1, round(len(ranked) * val_ratio)), max(0, len(ranked) - 1))
    return set(ranked[:count])


def _json_object(text: str) -> dict[str, Any]:
    try:
        text.encode("utf-8")
        row = json.loads(text)
    except UnicodeEncodeError:
        raise RowRejected("not_utf8", "is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise RowRejected("not_json", f"is not JSON: {error}"[:200]) from None
    if not isinstance(row, dict):
        raise RowRejected("not_an_object", "is not a JSON object")
    return row


def _turns(row: dict[str, Any], form: str) -> Iterator[dict[str, Any]]:
    turns = row[form]
    if form == "prompt":
        turns = [{"role": "user", "content": turns}]
    if not isinstance(turns, list) or not turns:
        raise RowRejected("no_conversation", f"the field {form} is not a list of turns")
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, dict):
            raise RowRejected("bad_turn", f"turn {number} is not an object")
        given = turn.get("from") if form == "conversations" and "from" in turn else turn.get("role")
        role = ROLES.get(given.strip().lower()) if isinstance(given, str) else None
        if role is None:
            raise RowRejected("unknown_role", f"turn {number} has the role {given!r}")
        content = turn.get("value") if form == "conversations" and "value" in turn else turn.get("content")
        kept = {name: turn[name] for name in KEPT_FIELDS if turn.get(name) is not None}
        yield {"role": role, "content": _text(content, role, number), **kept}


def _text(content: Any, role: str, number: int) -> str:
    if isinstance(content, list):
        parts = [p.get("text") for p in content if isinstance(p, dict) and p.get("type") in TEXT_PARTS]
        if len(parts) != len(content) or not all(isinstance(part, str) for part in parts):
            raise RowRejected("bad_content", f"turn {number} has content parts that are not text")
        content = "\n".join(part for part in parts if isinstance(part, str))
    if content is None and role == "assistant":
        return ""  # a call of tools, or half a thought
    if not isinstance(content, str):
        raise RowRejected("bad_content", f"turn {number} has content of type {type(content).__name__}")
    if role == "user" and not content.strip():
        raise RowRejected("empty_content", f"turn {number} is an empty user turn")
    return content


def _append(conversation: Conversation, message: dict[str, Any]) -> None:
    messages = conversation.messages
    seen_user = any(known["role"] == "user" for known in messages)
    if message["role"] == "assistant" and not seen_user:
        conversation.notes["leading_assistant_dropped"] += 1
    elif message["role"] == "system" and any(known["role"] == "system" for known in messages):
        raise RowRejected("several_system_turns", "has more than one system turn")
    elif message["role"] == "user" and messages and messages[-1]["role"] == "user":
        messages[-1]["content"] += "\n\n" + message["content"]
        conversation.notes["user_turns_joined"] += 1
    else:
        messages.append(message)


def _check_text(conversation: Conversation) -> None:
    """JSON can spell half a character (`\\ud83d` alone), which no file and no verifier takes."""
    try:
        json.dumps([conversation.messages, conversation.tools], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RowRejected("not_text", "holds half a character (a lone surrogate)") from None


def _tools(row: dict[str, Any]) -> list[Any] | None:
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            raise RowRejected("bad_tools", "the field tools is text that is not JSON") from None
    if tools is not None and not isinstance(tools, list):
        raise RowRejected("bad_tools", "the field tools is not a list")
    return tools or None
