"""Reads a row as a conversation, by rules that never guess: it is taken, or refused with the reason.

Three forms are read: `{"prompt": "..."}`, `{"messages": [...]}` (OpenAI) and `{"conversations": [...]}` (ShareGPT,
with `from` and `value`). Roles are mapped whatever their case and spaces; two user turns in a row are joined by a blank
line; assistant turns before the first user turn are dropped; both are counted.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shared.data.refusal import RowRejected
from shared.data.tool_calls import read_tool_calls, read_tools

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_call": "tool",
}
FORMS = ("prompt", "messages", "conversations")
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"  # spaces that `str.strip` does not know
TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
REASONING_TAGS = frozenset({"<think>", "</think>"})
PLAIN_FIELDS = frozenset({"role", "content", "from", "value"})
TEXT_FIELDS = ("tool_call_id", "name")
ID_CHARACTERS = 24  # 96 bits of SHA-256


@dataclass
class Conversation:
    """One row, normalised.

    Attributes:
        messages: `role` and `content`; `reasoning` and `tool_calls` in assistant turns; `name` and `tool_call_id`.
        tools: tool definitions of the row, or None.
        notes: what was mended on the way, for the counts.
    """

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
        return content_id(text)


def content_id(text: str) -> str:
    """The id of a row with a content."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:ID_CHARACTERS]


def parse_conversation(row: dict[str, Any], system_prompt: str | None = None) -> Conversation:
    """Read a row of one of the `FORMS`.

    Args:
        system_prompt: put first where the row has no system turn.

    Raises:
        RowRejected
    """
    form = next((name for name in FORMS if row.get(name) is not None), None)
    if form is None:
        raise RowRejected("no_conversation", f"has none of the fields {', '.join(FORMS)}")
    conversation = Conversation([], read_tools(row.get("tools")))
    seen: set[str] = set()
    for message in _turns(row[form], form):
        _append(conversation, message, seen)
    if "user" not in seen:
        raise RowRejected("no_user_turn", "has no user turn")
    system = _system(row) or system_prompt
    if system and conversation.messages[0]["role"] != "system":
        conversation.messages.insert(0, {"role": "system", "content": system})
    return conversation


def check_control_tokens(conversation: Conversation, control_tokens: Iterable[str]) -> None:
    """Refuse a conversation whose text spells out one of the verifier's control tokens.

    Reasoning tags in an assistant turn are none: many datasets keep the reasoning between them.

    Raises:
        RowRejected
    """
    tokens = list(control_tokens)
    for message in conversation.messages:
        role = message["role"]
        texts = [message["content"], message.get("reasoning", "")]
        texts += [
            json.dumps(message[name], ensure_ascii=False) for name in ("tool_calls", *TEXT_FIELDS) if name in message
        ]
        for token in tokens:
            if any(token in text for text in texts) and not (role == "assistant" and token in REASONING_TAGS):
                raise RowRejected("control_token", f"a {role} turn contains the control token {token}")
    if conversation.tools:
        text = json.dumps(conversation.tools, ensure_ascii=False)
        for token in tokens:
            if token in text:
                raise RowRejected("control_token", f"a tool definition contains the control token {token}")


def _turns(turns: Any, form: str) -> Iterator[dict[str, Any]]:
    if form == "prompt":
        turns = [{"role": "user", "content": turns}]
    if not isinstance(turns, list) or not turns:
        raise RowRejected("no_conversation", f"the field {form} is not a list of turns")
    sharegpt = form == "conversations"
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, dict):
            raise RowRejected("bad_turn", f"turn {number} is not an object")
        given = turn.get("from") if sharegpt and "from" in turn else turn.get("role")
        role = ROLES.get(given.strip().strip(INVISIBLE).strip().lower()) if isinstance(given, str) else None
        if role is None:
            raise RowRejected("unknown_role", f"turn {number} has the role {_shown(given)}")
        content = turn.get("value") if sharegpt and "value" in turn else turn.get("content")
        yield {"role": role, "content": _text(content, role, number), **_fields(turn, role, number)}


def _shown(role: Any) -> str:
    text = repr(role)
    return text if len(text) <= 80 else text[:80] + "..."


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


def _fields(turn: dict[str, Any], role: str, number: int) -> dict[str, Any]:
    """What a turn has beside role and content; what the chat template cannot show is left out."""
    fields: dict[str, Any] = {}
    if turn.keys() <= PLAIN_FIELDS:
        return fields
    for name in TEXT_FIELDS:
        value = turn.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise RowRejected("bad_turn", f"turn {number} has a {name} of type {type(value).__name__}")
            fields[name] = value
    if role != "assistant":
        return fields
    if turn.get("function_call") is not None:
        raise RowRejected("bad_tool_call", f"turn {number} has the old field function_call: write tool_calls")
    reasoning = _reasoning(turn, number)
    if reasoning:
        fields["reasoning"] = reasoning
    calls = read_tool_calls(turn.get("tool_calls"), number)
    if calls:
        fields["tool_calls"] = calls
    return fields


def _reasoning(turn: dict[str, Any], number: int) -> str:
    given = {turn[name] for name in ("reasoning", "reasoning_content") if isinstance(turn.get(name), str)}
    others = [name for name in ("reasoning", "reasoning_content") if not isinstance(turn.get(name), str | None)]
    if others:
        raise RowRejected("bad_reasoning", f"turn {number} has a {others[0]} that is not text")
    given.discard("")
    if len(given) > 1:
        raise RowRejected("bad_reasoning", f"turn {number} has a reasoning and another reasoning_content")
    return given.pop() if given else ""


def _append(conversation: Conversation, message: dict[str, Any], seen: set[str]) -> None:
    messages, role = conversation.messages, message["role"]
    if role == "assistant" and "user" not in seen:
        conversation.notes["leading_assistant_dropped"] += 1
        return
    if role == "system" and "system" in seen:
        raise RowRejected("several_system_turns", "has more than one system turn")
    seen.add(role)
    if role == "user" and messages and messages[-1]["role"] == "user":
        messages[-1]["content"] += "\n\n" + message["content"]
        conversation.notes["user_turns_joined"] += 1
    else:
        messages.append(message)


def _system(row: dict[str, Any]) -> str | None:
    system = row.get("system")
    if system is None:
        return None
    if not isinstance(system, str):
        raise RowRejected("bad_system", f"the field system is of type {type(system).__name__}")
    return system if system.strip() else None
