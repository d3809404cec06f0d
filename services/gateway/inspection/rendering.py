"""Renders conversations by the verifier's own chat template: token ids, what of them is learnt, and their text.

Existing answers go through the code that the generate stage masks them with. Where the verifier is to write the
answers, the prompt of each turn is rendered, with the dataset's own answers in the place of its earlier ones.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from services.gateway.inspection.documents import InspectionProgress, SampleSegment, SampleView, TurnView
from services.gateway.inspection.verifier import CONCURRENCY, TokenizerClient
from shared.data.refusal import RowRejected
from shared.data.rendering import Message, TurnRenderer, chat_body, split_reasoning, spoken
from shared.data.turns import check_answer, check_prompt, clip_answer, speaking_turns
from shared.errors import VerifierError
from shared.schemas.prepared import Prepared
from shared.schemas.spec import DataSpec

LIMIT_S = 120.0


@dataclass
class Turn:
    """One row to be.

    Attributes:
        ids, mask: token ids, and 1 where they are learnt; an answer's last token, which has no state, is among them.
        tokens: of the row as the trainer reads it.
        written: whether the answer is there; else the verifier will write it after `ids`.
    """

    number: int
    ids: list[int]
    mask: list[int]
    tokens: int
    clipped: bool = False
    written: bool = True


@dataclass
class Rendered:
    """A conversation's turns, and why others of them would be refused.

    Attributes:
        lengths: tokens of each turn before `data.max_seq_len` clips or refuses it.
    """

    row: Prepared
    turns: list[Turn] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    refusals: list[RowRejected] = field(default_factory=list)


class Renderer:
    """Renders rows of one dataset.

    Args:
        client: the verifier; None: only rows that came as token ids can be rendered, and without text.
        end_ids: ids that end a turn.

    Attributes:
        problem: why rendering ended early, a sentence; None while all is well.
    """

    def __init__(
        self, client: TokenizerClient | None, data: DataSpec, end_ids: Iterable[int], progress: InspectionProgress
    ) -> None:
        self.client, self.data, self.progress = client, data, progress
        self.turns = TurnRenderer(client.tokenize, end_ids) if client else None
        self.problem: str | None = None

    async def render(self, rows: list[Prepared]) -> list[Rendered]:
        """Render rows, some at a time, within `LIMIT_S`; in the given order, without those that could not be."""
        found: dict[int, Rendered] = {}
        waiting = iter(enumerate(rows))

        async def work() -> None:
            for place, row in waiting:
                if self.problem or (self.client is None and row.input_ids is None):
                    continue
                try:
                    found[place] = await self._row(row)
                except VerifierError as error:
                    self.problem = f"{error}; {len(found)} of {len(rows)} rows were measured"
                self.progress.rendered = len(found)

        try:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
        except TimeoutError:
            self.problem = f"rendering was ended after {LIMIT_S:g} s, {len(found)} of {len(rows)} rows were measured"
        return [found[place] for place in sorted(found)]

    async def show(self, rendered: Rendered) -> SampleView:
        """A conversation as people read it."""
        row = rendered.row
        turns = [await self._turn_view(turn) for turn in rendered.turns]
        return SampleView(id=row.id, source=row.source, line=row.line, turns=turns)

    async def _row(self, row: Prepared) -> Rendered:
        if row.input_ids is not None:
            turn = Turn(0, row.input_ids, row.loss_mask or [], len(row.input_ids))
            return Rendered(row, [turn], [turn.tokens])
        rendered = Rendered(row)
        history: list[Message] = []
        for number, (before, given) in enumerate(speaking_turns(row.messages or [], self.data.generate)):
            history.extend(before)
            try:
                prompt, answer = await self._ids(row, history, given)
                rendered.lengths.append(len(prompt) + max(0, len(answer) - 1))
                rendered.turns.append(self._turn(number, prompt, answer))
            except RowRejected as refusal:
                rendered.refusals.append(refusal)
            history.append(spoken(*split_reasoning(given or {}), (given or {}).get("tool_calls")))
        return rendered

    async def _ids(self, row: Prepared, history: list[Message], given: Message | None) -> tuple[list[int], list[int]]:
        """What the verifier reads before a turn and what it writes in it; nothing where it has yet to write."""
        assert self.client is not None
        assert self.turns is not None
        if not self.data.generate:
            rendered = await self.turns.render(history, given or {}, row.tools)
            return rendered.prompt_ids, rendered.answer_ids
        body = chat_body(history, row.tools, thinking=self.data.sampling.thinking, generation_prompt=True)
        return await self.client.tokenize(body), []

    def _turn(self, number: int, prompt: list[int], answer: list[int]) -> Turn:
        limit = self.data.max_seq_len
        if self.data.generate:
            check_prompt(prompt, limit)
            return Turn(number, prompt, [0] * len(prompt), len(prompt), written=False)
        check_answer(answer)
        check_prompt(prompt, limit)
        kept = clip_answer(prompt, answer, limit)
        mask = [0] * len(prompt) + [1] * len(kept)
        return Turn(number, prompt + kept, mask, len(mask) - 1, clipped=len(kept) < len(answer))

    async def _turn_view(self, turn: Turn) -> TurnView:
        segments = [
            SampleSegment(text=await self._text(ids), token_ids=ids, supervised=supervised)
            for ids, supervised in _stretches(turn.ids, turn.mask)
        ]
        if not turn.written:
            segments.append(SampleSegment(text="", token_ids=[], supervised=True))
        return TurnView(
            turn=turn.number,
            tokens=turn.tokens,
            supervised_tokens=sum(turn.mask),
            clipped=turn.clipped,
            segments=segments,
        )

    async def _text(self, ids: list[int]) -> str | None:
        if self.client is None or self.problem:
            return None
        try:
            return await self.client.text(ids)
        except (RowRejected, VerifierError) as error:
            self.problem = str(error)
            return None


def _stretches(ids: list[int], mask: list[int]) -> Iterator[tuple[list[int], bool]]:
    start = 0
    for supervised, group in groupby(mask):
        end = start + sum(1 for _ in group)
        yield ids[start:end], bool(supervised)
        start = end
