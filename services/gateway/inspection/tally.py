"""Counts of a dry run: rows by source, rejects by reason with the first of each, token lengths of what was measured."""

from collections import Counter
from dataclasses import dataclass, field

from services.gateway.inspection.documents import RejectedRow, RejectReason, SourceCounts, TokenLengths
from services.gateway.inspection.lengths import histogram, quantile
from services.gateway.inspection.rendering import Rendered
from shared.data.refusal import RowRejected
from shared.data.row_reader import AcceptedRow

FIRST_SHOWN = 3


@dataclass
class Rejects:
    """Rejected rows by reason; of each reason the first few are kept."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, list[RejectedRow]] = field(default_factory=dict)

    def add(self, source: str, line: int, refusal: RowRejected) -> None:
        """Count a row; call it in the order of the files."""
        self.counts[refusal.reason] += 1
        shown = self.first.setdefault(refusal.reason, [])
        if len(shown) < FIRST_SHOWN:
            shown.append(RejectedRow(source=source, line=line, message=refusal.message))

    def by_reason(self) -> list[RejectReason]:
        """Most frequent first."""
        order = sorted(self.counts, key=lambda reason: (-self.counts[reason], reason))
        return [RejectReason(reason=name, rows=self.counts[name], first=self.first[name]) for name in order]


@dataclass
class RowCounts:
    """What became of the rows of all sources."""

    rows: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    held_out: int = 0
    mended: Counter[str] = field(default_factory=Counter)
    rejects: Rejects = field(default_factory=Rejects)

    def sources(self) -> list[SourceCounts]:
        """In the order of the dataset's files."""
        return [SourceCounts(name=name, rows=rows, kept=self.kept[name]) for name, rows in self.rows.items()]


@dataclass
class Lengths:
    """Token lengths of rows to be, and what becomes of them."""

    max_seq_len: int
    conversations: int = 0
    counts: Counter[int] = field(default_factory=Counter)
    total: int = 0
    supervised: int = 0
    over: int = 0
    clipped: int = 0
    prompts_only: bool = False
    refusals: Rejects = field(default_factory=Rejects)

    def add(self, rendered: Rendered) -> None:
        """Count the rows of a conversation."""
        self.conversations += 1
        self.counts.update(rendered.lengths)
        self.over += sum(length > self.max_seq_len for length in rendered.lengths)
        for turn in rendered.turns:
            self.total += turn.tokens
            self.supervised += sum(turn.mask)
            self.clipped += turn.clipped
            self.prompts_only |= not turn.written
        for refusal in rendered.refusals:
            self.refusals.add(rendered.row.source, rendered.row.line, refusal)

    def add_ready(self, row: AcceptedRow) -> None:
        """Count a row that came as token ids; where it was clipped, its length is what is left."""
        ids, mask, clipped = row.content["input_ids"], row.content["loss_mask"], bool(row.notes["clipped"])
        self.conversations += 1
        self.counts[len(ids)] += 1
        self.total += len(ids)
        self.supervised += sum(mask)
        self.over += clipped
        self.clipped += clipped

    def summary(self, kept: int) -> TokenLengths | None:
        """The statistics, or None where nothing was measured."""
        if not self.counts:
            return None
        return TokenLengths(
            unit="prompts" if self.prompts_only else "rows",
            conversations=self.conversations,
            complete=self.conversations == kept,
            measured=self.counts.total(),
            min=min(self.counts),
            median=quantile(self.counts, 0.5),
            p95=quantile(self.counts, 0.95),
            max=max(self.counts),
            total=self.total,
            supervised=self.supervised,
            max_seq_len=self.max_seq_len,
            over_max_seq_len=self.over,
            clipped=self.clipped,
            histogram=histogram(self.counts),
        )
