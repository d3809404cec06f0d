"""Turns of one conversation into rows: written by the verifier, or taken as the dataset has them.

In: a prepared conversation. Out: its rows, and a refusal for every turn that gave none: nothing is lost unnamed.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.worker.data.earlier_rows import EarlierRows
from services.worker.data.exchange import BadStates, drop, take_states
from services.worker.data.rows import Row, RowFolder, answer_fields
from services.worker.data.verifier_client import Completion, RowRefused, VerifierClient
from shared.artifact_store import link_or_copy
from shared.data.refusal import RowRejected
from shared.data.rendering import Message, TurnRenderer, split_reasoning, spoken
from shared.data.turns import check_answer, check_prompt, speaking_turns
from shared.schemas.prepared import Prepared
from shared.schemas.spec import DataSpec

SEED_BITS = 31
FROM_DATASET = "dataset"  # finish_reason of an answer that the verifier did not write


@dataclass(frozen=True)
class Refusal:
    """A turn that gave no row."""

    turn: int
    reason: str
    message: str


@dataclass
class Written:
    """What became of one conversation: every turn is a row or a refusal."""

    rows: list[Row] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    taken_over: int = 0


class TurnWriter:
    """Makes the rows of conversations, one turn after the other.

    Args:
        rows: where rows are kept until their shard is written.
        earlier: where rows of other runs are found.
        tag: begins the `X-Request-Id` of every request, so that what is left over can be swept.
        capture: ask for hidden states with each answer.
    """

    def __init__(
        self,
        client: VerifierClient,
        renderer: TurnRenderer,
        rows: RowFolder,
        earlier: EarlierRows,
        data: DataSpec,
        *,
        tag: str,
        capture: bool,
    ) -> None:
        self.client, self.renderer, self.rows, self.earlier = client, renderer, rows, earlier
        self.data, self.tag, self.capture = data, tag, capture

    async def write(self, conversation: Prepared) -> Written:
        """Make the rows of a conversation; those that exist are not made again.

        A turn that is refused ends a conversation whose later turns would have to follow it: one that the verifier
        writes, or one that its template cannot render. The rows before it are kept.

        Raises:
            VerifierError: the verifier is down.
        """
        written = Written()
        turns = list(speaking_turns(conversation.messages or [], self.data.generate))
        known = self.earlier.find(conversation, len(turns))
        history: list[Message] = []
        for turn, (before, given) in enumerate(turns):
            history.extend(before)
            try:
                if turn in known:
                    row = self._take_over(*known[turn])
                    written.taken_over += 1
                else:
                    row = await self._make(conversation, turn, history, given)
                    known = {} if self.data.generate else known  # later ones have not seen this answer
            except RowRejected as refusal:
                written.refusals.append(Refusal(turn, refusal.reason, refusal.message))
                if self.data.generate or isinstance(refusal, RowRefused):
                    self._refuse_rest(written, turn, len(turns), "earlier_turn_rejected")
                    break
                history.append(spoken(*split_reasoning(given or {}), (given or {}).get("tool_calls")))
                continue
            written.rows.append(row)
            if not row.content.strip() and not row.tool_calls and turn + 1 < len(turns):
                self._refuse_rest(written, turn, len(turns), "earlier_turn_unfinished")
                break
            following = turns[turn + 1][0] if turn + 1 < len(turns) else []
            history.append(answer_in_history(row, given, following))
        return written

    def _refuse_rest(self, written: Written, turn: int, turns: int, reason: str) -> None:
        why = "was refused" if reason == "earlier_turn_rejected" else "ended before an answer was begun"
        for later in range(turn + 1, turns):
            written.refusals.append(Refusal(later, reason, f"turn {turn} {why}"))

    def _take_over(self, row: Row, states: Path) -> Row:
        """Make an earlier run's row our own, with its states where they are still there."""
        try:
            link_or_copy(states, self.rows.states_path(row.id))
            row.has_states = True
        except FileNotFoundError:
            row.has_states = False  # the capture stage asks for them
        self.rows.write(row)
        return row

    async def _make(self, conversation: Prepared, turn: int, history: list[Message], given: Message | None) -> Row:
        completion = await (
            self._ask(conversation, turn, history)
            if self.data.generate
            else self._render(conversation, history, given or {})
        )
        try:
            self._check(completion)
        except RowRejected:
            await self._drop(completion.states)
            raise
        return await self._keep(conversation, turn, completion)

    async def _ask(self, conversation: Prepared, turn: int, history: list[Message]) -> Completion:
        row_id, sampling = f"{conversation.id}.{turn}", self.data.sampling
        try:
            return await self.client.chat(
                history,
                sampling,
                request_id=f"{self.tag}-{row_id}",
                seed=None if sampling.seed is None else row_seed(sampling.seed, row_id),
                tools=conversation.tools,
                capture=self.capture,
            )
        except RowRefused as refusal:
            await self._drop(refusal.states)
            raise

    async def _render(self, conversation: Prepared, history: list[Message], given: Message) -> Completion:
        turn = await self.renderer.render(history, given, conversation.tools)
        calls = given.get("tool_calls") or []
        return Completion(turn.prompt_ids, turn.answer_ids, turn.content, turn.reasoning, calls, FROM_DATASET)

    def _check(self, completion: Completion) -> None:
        check_answer(completion.answer_ids)
        if completion.finish_reason == "length" and self.data.on_truncated == "drop":
            raise RowRejected("truncated", "the answer was cut at data.sampling.max_tokens")
        check_prompt(completion.prompt_ids, self.data.max_seq_len)

    async def _keep(self, conversation: Prepared, turn: int, completion: Completion) -> Row:
        row_id = f"{conversation.id}.{turn}"
        has_states = False
        if completion.states is not None:
            try:
                await asyncio.to_thread(take_states, completion.states, self.rows.states_path(row_id))
                has_states = True
            except BadStates:
                has_states = False  # the capture stage asks for them again
        row = Row(
            id=row_id,
            conversation=conversation.id,
            turn=turn,
            line=conversation.line,
            source=conversation.source,
            split=conversation.split,
            **answer_fields(completion.prompt_ids, completion.answer_ids, self.data.max_seq_len),
            finish_reason=completion.finish_reason,
            has_states=has_states,
            content=completion.content,
            reasoning=completion.reasoning,
            tool_calls=completion.tool_calls,
        )
        self.rows.write(row)
        return row

    async def _drop(self, states: Path | None) -> None:
        if states is not None:
            await asyncio.to_thread(drop, states)


def answer_in_history(row: Row, given: Message | None, following: list[Message]) -> Message:
    """What stands in the history for a turn that has spoken: what it said itself.

    Results of tools that follow in the dataset answer the dataset's calls. Where the turn called the same tools, they
    are addressed to its calls; where it did not, the dataset's own turn stands before its results.
    """
    own = spoken(row.content, row.reasoning, row.tool_calls)
    results = [message for message in following if message["role"] == "tool"]
    if not results or row.finish_reason == FROM_DATASET:
        return own
    expected = (given or {}).get("tool_calls") or []
    if _called(row.tool_calls) != _called(expected):
        return spoken(*split_reasoning(given or {}), expected)
    ids = {old.get("id"): new.get("id") for old, new in zip(expected, row.tool_calls, strict=True)}
    for result in results:
        if result.get("tool_call_id") in ids:
            result["tool_call_id"] = ids[result["tool_call_id"]]
    return own


def row_seed(base: int, row_id: str) -> int:
    """A row's own sampling seed, from the job's."""
    digest = hashlib.sha256(f"{base}:{row_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - SEED_BITS)


def _called(calls: list[Any]) -> list[Any]:
    """Names of the tools that are called, in order."""
    return [(call.get("function") or {}).get("name") for call in calls]
