"""Chooses rows by seeded hash rank: the same ones in any order of reading, from all sources, in bounded memory."""

import hashlib
import heapq
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from shared.data.row_reader import AcceptedRow
from shared.data.shares import largest_remainder
from shared.schemas.prepared import Prepared

MAX_BYTES = 64 << 20


@dataclass(order=True, frozen=True)
class _Candidate:
    """A row that may be chosen; of a heap the first is the one to give up next: the one with the highest rank."""

    falls_first: int
    line: int
    content: bytes = field(compare=False)


class RowSampler:
    """Feed it all accepted rows with `add`, then ask for those that are `chosen`.

    Rows are ranked as the prepare stage ranks them where a source gives a part of its rows only: those of the lowest
    ranks, which are kept here, are used there.

    Args:
        size: rows to choose; there may be fewer.
        seed: the job's `data.seed`.
        max_bytes: fewer rows are kept where they would take more memory.
    """

    def __init__(self, size: int, seed: int, max_bytes: int = MAX_BYTES) -> None:
        self.size, self.seed, self.max_bytes = size, seed, max_bytes
        self._heaps: dict[str, list[_Candidate]] = defaultdict(list)
        self._per_source = size
        self._bytes = 0

    def add(self, row: AcceptedRow) -> None:
        """Consider a row."""
        heap = self._heaps[row.source]
        key = -self._rank(row.identity)
        if not self.size or (len(heap) >= self._per_source and key <= heap[0].falls_first):
            return
        head = json.dumps({"id": row.identity, "line": row.line, "source": row.source, "split": "train"})
        candidate = _Candidate(key, row.line, f"{head[:-1]}, {row.text[1:]}".encode())
        heapq.heappush(heap, candidate)
        self._bytes += len(candidate.content)
        self._shrink(heap)
        while self._bytes > self.max_bytes and self._per_source > 1:
            self._per_source //= 2
            for one in self._heaps.values():
                self._shrink(one)

    def candidates(self) -> set[tuple[str, int]]:
        """Source and line of the rows that may be chosen."""
        return {(source, candidate.line) for source, heap in self._heaps.items() for candidate in heap}

    def chosen(self, used: set[tuple[str, int]], kept: Counter[str]) -> list[Prepared]:
        """The chosen rows: the first of each source, then the others by rank; each source gives its share.

        Args:
            used: those of the candidates that are kept in the end.
            kept: rows that are kept, by source.
        """
        names = [name for name in self._heaps if kept[name]]
        if not names or not self.size:
            return []
        shares = largest_remainder(min(self.size, kept.total()), [kept[name] for name in names])
        firsts, others = [], []
        for name, share in zip(names, shares, strict=True):
            ranked = sorted((one for one in self._heaps[name] if (name, one.line) in used), reverse=True)
            firsts += ranked[:1]
            others += ranked[1 : max(1, share)]
        chosen = [*sorted(firsts, reverse=True), *sorted(others, reverse=True)][: self.size]
        return [Prepared.model_validate_json(one.content) for one in chosen]

    def _rank(self, row_id: str) -> int:
        return int.from_bytes(hashlib.sha256(f"pick:{self.seed}:{row_id}".encode()).digest(), "big")

    def _shrink(self, heap: list[_Candidate]) -> None:
        while len(heap) > self._per_source:
            self._bytes -= len(heapq.heappop(heap).content)
