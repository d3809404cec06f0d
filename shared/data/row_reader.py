"""Judges one row after the other by a job's rules: the same for the prepare stage and the inspection of datasets."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shared.data import conversations
from shared.data.conversations import check_control_tokens, content_id, parse_conversation
from shared.data.files import RawRow
from shared.data.jsonl import parse_object
from shared.data.refusal import RowRejected
from shared.data.token_rows import check_last_id, parse_token_row
from shared.data.tool_calls import json_text
from shared.schemas.spec import DataSpec

FORMS = (*conversations.FORMS, "input_ids")


@dataclass(frozen=True)
class AcceptedRow:
    """A row that can be used.

    Attributes:
        source, line: where it stands.
        identity: hash of the content; the same conversation has the same one in every dataset.
        content: `messages` and `tools`, or `input_ids` and `loss_mask` (ready-made: also `states` and `last_id`).
        text: the content as JSON, on one line.
        conversation: name of the conversation that it belongs to, where the row gives one (`conversation_id`).
        notes: what was mended, for the counts.
    """

    source: str
    line: int
    identity: str
    content: dict[str, Any]
    text: str
    conversation: str | None
    notes: Counter[str]


class RowReader:
    """Reads rows of any form.

    Args:
        data: the job's rules.
        control_tokens: texts of the verifier's control tokens.
        vocab_size: of the verifier (`text_config.vocab_size`); None where it is not known: no upper bound for ids.
    """

    def __init__(self, data: DataSpec, control_tokens: Iterable[str], vocab_size: int | None) -> None:
        self.data, self.vocab_size = data, vocab_size
        self.control_tokens = sorted(set(control_tokens))
        self._escaped = [json.dumps(token, ensure_ascii=False)[1:-1] for token in self.control_tokens]

    def read(self, raw: RawRow) -> AcceptedRow:
        """Judge one row by itself: whether it is a duplicate or beyond a limit is the `RowIndex`'s to say.

        Raises:
            RowRejected
        """
        if isinstance(raw.value, RowRejected):
            raise raw.value
        row = parse_object(raw.value) if isinstance(raw.value, str) else raw.value
        given = [form for form in FORMS if row.get(form) is not None]
        if len(given) > 1:
            raise RowRejected("several_forms", f"has {' and '.join(given)}: a row is of one form, drop the others")
        name = _conversation_name(row)
        if given == ["input_ids"]:
            return self._token_row(raw, row, name)
        if not given:
            raise RowRejected("no_conversation", f"has none of the fields {', '.join(FORMS)}")
        conversation = parse_conversation(row, self.data.system_prompt)
        content = {"messages": conversation.messages, "tools": conversation.tools}
        text = json_text(content)
        if self.data.on_control_tokens == "reject" and any(token in text for token in self._escaped):
            check_control_tokens(conversation, self.control_tokens)
        if not self.data.generate and not any(m["role"] == "assistant" for m in conversation.messages):
            raise RowRejected(
                "no_answer", "has no answer to learn from (data.generate true has the verifier write one)"
            )
        identity = conversation.identity(with_answers=not self.data.generate)
        return AcceptedRow(raw.source, raw.line, identity, content, text, name, conversation.notes)

    def _token_row(self, raw: RawRow, row: dict[str, Any], name: str | None) -> AcceptedRow:
        if self.data.generate:
            raise RowRejected(
                "pretokenised", "has token ids, whose answers are written already: set data.generate to false"
            )
        tokens = parse_token_row(row, self.vocab_size, self.data.max_seq_len)
        content: dict[str, Any] = {"input_ids": tokens.input_ids, "loss_mask": tokens.loss_mask}
        if raw.ready is not None and raw.ready.last_id is not None and not tokens.notes["clipped"]:
            content["last_id"] = check_last_id(raw.ready.last_id, self.vocab_size)
        identity = content_id(json_text(content))
        if raw.ready is not None and raw.ready.states is not None:
            content["states"] = raw.ready.states
        return AcceptedRow(raw.source, raw.line, identity, content, json_text(content), name, tokens.notes)


def _conversation_name(row: dict[str, Any]) -> str | None:
    """`conversation_id` as text; 7 and "7" are two conversations."""
    name = row.get("conversation_id")
    if name is None or name == "":
        return None
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise RowRejected("bad_conversation_id", f"has a conversation_id of type {type(name).__name__}")
    return json.dumps(name)
