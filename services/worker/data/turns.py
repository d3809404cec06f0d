"""Turns of one conversation into rows: written by the verifier, or taken as the dataset has them."""

import asyncio
import hashlib
from collections.abc import Iterator
from typing import Any

from services.worker.data.exchange import BadStates, drop, take_states
from services.worker.data.rows import Row, RowFolder
from services.worker.data.verifier_client import Completion, RowRefused, VerifierClient, split_reasoning
from shared.schemas.spec import DataSpec

SEED_BITS = 31


class TurnWriter:
    """Makes the rows of conversations, one turn after the other.

    Args:
        tag: begins the `X-Request-Id` of every request, so that what is left over can be swept.
        capture: ask for hidden states with each answer.
    """

    def __init__(self, client: VerifierClient, rows: RowFolder, data: DataSpec, tag: str, capture: bool) -> None:
        self.client, self.rows, self.data, self.tag, self.capture = client, rows, data, tag, capture

    async def write(self, conversation: dict[str, Any]) -> list[Row]:
        """Return the rows of a prepared conversation; those that exist are not made again.

        Raises:
            RowRefused: from the first turn that cannot be used; the rows before it are kept on disk.
            VerifierError
        """
        made: list[Row] = []
        history: list[dict[str, Any]] = []
        for turn, (before, given) in enumerate(speaking_turns(conversation["messages"], self.data.generate)):
            history.extend(before)
            row_id = f"{conversation['id']}.{turn}"
            if self.rows.has(row_id):
                row = self.rows.read(row_id)
            elif self.data.generate:
                row = await self._generate(conversation, turn, row_id, history)
            else:
                row = await self._existing(conversation, turn, row_id, history, given or {})
            made.append(row)
            calls = {} if self.data.generate else _calls(given)
            history.append({"role": "assistant", "content": row.content, **calls})
        return made

    async def _generate(
        self, conversation: dict[str, Any], turn: int, row_id: str, history: list[dict[str, Any]]
    ) -> Row:
        sampling = self.data.sampling
        completion = await self.client.chat(
            history,
            sampling,
            request_id=f"{self.tag}-{row_id}",
            seed=None if sampling.seed is None else row_seed(sampling.seed, row_id),
            tools=conversation["tools"],
            capture=self.capture,
        )
        try:
            self._check_answer(completion.answer_ids, completion.finish_reason)
            _fit(completion.prompt_ids, self.data.max_seq_len)
        except RowRefused:
            if completion.states is not None:
                await asyncio.to_thread(drop, completion.states)
            raise
        return await self._keep(conversation, turn, row_id, completion)

    async def _existing(
        self,
        conversation: dict[str, Any],
        turn: int,
        row_id: str,
        history: list[dict[str, Any]],
        given: dict[str, Any],
    ) -> Row:
        content, reasoning = split_reasoning(given)
        calls = _calls(given)
        if not content and not reasoning and not calls:
            raise RowRefused("empty_answer", "the answer is empty")
        options = {"chat_template_kwargs": {"thinking": bool(reasoning)}, "tools": conversation["tools"]}
        bare = {"role": "assistant", "content": content, **calls}
        answer = {**bare, "reasoning": reasoning, "reasoning_content": reasoning}
        prompt = await self.client.tokenize(history, generation_prompt=True, **options)
        whole = await self.client.tokenize([*history, answer], generation_prompt=False, **options)
        if whole[: len(prompt)] != prompt:
            raise RowRefused("template_mismatch", "rendered with and without the answer, the prompts differ")
        if reasoning and whole == await self.client.tokenize([*history, bare], generation_prompt=False, **options):
            raise RowRefused("reasoning_dropped", "the verifier's chat template drops the answer's reasoning")
        self._check_answer(whole[len(prompt) :], "stop")
        _fit(prompt, self.data.max_seq_len)
        completion = Completion(prompt, whole[len(prompt) :], content, reasoning, "dataset", None)
        return await self._keep(conversation, turn, row_id, completion)

    def _check_answer(self, answer_ids: list[int], finish_reason: str) -> None:
        if len(answer_ids) < 2:
            raise RowRefused("no_supervised_token", f"an answer of {len(answer_ids)} tokens has none to learn from")
        if finish_reason == "length" and self.data.on_truncated == "drop":
            raise RowRefused("truncated", "the answer was cut at data.sampling.max_tokens")

    async def _keep(self, conversation: dict[str, Any], turn: int, row_id: str, completion: Completion) -> Row:
        has_states = False
        if completion.states is not None:
            try:
                await asyncio.to_thread(take_states, completion.states, self.rows.states_path(row_id))
                has_states = True
            except BadStates:
                has_states = False  # the capture stage asks for them again
        prompt_ids = completion.prompt_ids
        longest_answer = self.data.max_seq_len - len(prompt_ids) + 1  # the last id has no state
        clipped = len(completion.answer_ids) > longest_answer
        row = Row(
            id=row_id,
            conversation=conversation["id"],
            turn=turn,
            line=conversation["line"],
            split=conversation["split"],
            prompt_ids=prompt_ids,
            answer_ids=completion.answer_ids[:longest_answer],
            finish_reason=completion.finish_reason,
            has_states=has_states,
            clipped=clipped,
            content=completion.content,
            reasoning=completion.reasoning,
        )
        self.rows.write(row)
        return row


def speaking_turns(
    messages: list[dict[str, Any]], generate: bool
) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any] | None]]:
    """Yield each place where the assistant speaks: the messages since the last one, and what the dataset has there.

    With `generate`, the verifier speaks wherever the dataset's assistant does and after a last user or tool turn; turns
    that call tools stay context, since the tool's result belongs to them.
    """
    before: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant" and not (generate and message.get("tool_calls")):
            yield before, message
            before = []
        else:
            before.append(message)
    if generate and before and before[-1]["role"] in ("user", "tool"):
        yield before, None


def row_seed(base: int, row_id: str) -> int:
    """A row's own sampling seed, from the job's."""
    digest = hashlib.sha256(f"{base}:{row_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - SEED_BITS)


def _calls(message: dict[str, Any] | None) -> dict[str, Any]:
    """The tool calls of an assistant turn, as a part of a message."""
    calls = (message or {}).get("tool_calls")
    return {"tool_calls": calls} if calls else {}


def _fit(prompt_ids: list[int], max_seq_len: int) -> None:
    if len(prompt_ids) >= max_seq_len:
        raise RowRefused(
            "prompt_too_long", f"a prompt of {len(prompt_ids)} tokens leaves no room in data.max_seq_len {max_seq_len}"
        )
