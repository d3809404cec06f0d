"""What is known of a dataset's rows while it is prepared: which were accepted, which refused, which belong together.

It lives in a SQLite file with a bounded cache: memory does not grow with the number of rows. One writer, no recovery:
the file is thrown away with the attempt. No locks either, which not every shared volume has.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from shared.data.refusal import RowRejected
from shared.data.row_reader import AcceptedRow

CACHE_KIB = 16 * 1024
MESSAGE_CHARACTERS = 500
TABLES = """
CREATE TABLE rows (
    seq INTEGER PRIMARY KEY,   -- order of acceptance
    source INTEGER NOT NULL,
    line INTEGER NOT NULL,
    id TEXT NOT NULL,
    grp INTEGER NOT NULL,      -- rows that must stand on one side of the split: seq of the first of them
    first INTEGER NOT NULL,    -- whether it begins a conversation
    taken INTEGER NOT NULL DEFAULT 1
);
CREATE INDEX rows_by_group ON rows (grp);
CREATE INDEX rows_by_source ON rows (source);
CREATE TABLE seen (identity TEXT PRIMARY KEY, count INTEGER NOT NULL, grp INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE conversations (name TEXT PRIMARY KEY, grp INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE merged (grp INTEGER PRIMARY KEY, parent INTEGER NOT NULL);
CREATE TABLE groups (
    grp INTEGER PRIMARY KEY, source INTEGER NOT NULL, conversations INTEGER NOT NULL, rank BLOB NOT NULL
);
CREATE INDEX groups_by_rank ON groups (source, rank);
CREATE TABLE held_out (grp INTEGER PRIMARY KEY);
CREATE TABLE rejects (
    source INTEGER NOT NULL, line INTEGER NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
    PRIMARY KEY (source, line)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Reject:
    """A row that is not used, and why."""

    source: str
    line: int
    reason: str
    message: str


class RowIndex:
    """Rows in their order, equal ones found, by name of their source.

    Args:
        path: of a new file.
        sources: names, in order.
        deduplicate: refuse a row that is equal to an earlier one; else it gets an id of its own.
        limit: refuse rows after so many.
    """

    def __init__(self, path: Path, sources: list[str], *, deduplicate: bool, limit: int | None) -> None:
        self.sources, self.deduplicate, self.limit = sources, deduplicate, limit
        self.accepted = 0
        self._numbers = {name: number for number, name in enumerate(sources)}
        self.db = sqlite3.connect(f"{path.absolute().as_uri()}?nolock=1", uri=True, isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE"):
            self.db.execute(f"PRAGMA {setting}")
        self.db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self.db.executescript(TABLES)
        self.db.execute("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.db.close()

    def add(self, row: AcceptedRow) -> None:
        """Enter an accepted row.

        Raises:
            RowRejected: it is equal to an earlier one, or beyond the limit; then it is not entered.
        """
        known = self.db.execute("SELECT count, grp FROM seen WHERE identity = ?", (row.identity,)).fetchone()
        if known and self.deduplicate:
            raise RowRejected("duplicate", "an earlier row has the same conversation")
        if self.limit is not None and self.accepted >= self.limit:
            raise RowRejected("over_limit", f"data.limit is {self.limit}")
        self.accepted += 1
        count, equal = known or (0, None)
        group, first = self._group(self.accepted, equal, row.conversation)
        if known:
            self.db.execute("UPDATE seen SET count = count + 1 WHERE identity = ?", (row.identity,))
        else:
            self.db.execute("INSERT INTO seen VALUES (?, 1, ?)", (row.identity, group))
        row_id = f"{row.identity}-{count + 1}" if count else row.identity
        self.db.execute(
            "INSERT INTO rows (seq, source, line, id, grp, first) VALUES (?, ?, ?, ?, ?, ?)",
            (self.accepted, self._numbers[row.source], row.line, row_id, group, first),
        )

    def reject(self, source: str, line: int, refusal: RowRejected) -> None:
        """Enter a row that is not used."""
        values = (self._numbers[source], line, refusal.reason, refusal.message[:MESSAGE_CHARACTERS])
        self.db.execute("INSERT INTO rejects VALUES (?, ?, ?, ?)", values)

    def rejects(self, limit: int = -1) -> Iterator[Reject]:
        """The rows that are not used, in the order of files and lines."""
        rows = self.db.execute("SELECT * FROM rejects ORDER BY source, line LIMIT ?", (limit,))
        for source, line, reason, message in rows:
            yield Reject(self.sources[source], line, reason, message)

    def reasons(self) -> dict[str, int]:
        """How many rows are not used, by reason."""
        return dict(self.db.execute("SELECT reason, COUNT(*) FROM rejects GROUP BY reason ORDER BY reason"))

    def taken(self) -> Counter[int]:
        """Rows that are taken, by number of their source."""
        return Counter(dict(self.db.execute("SELECT source, COUNT(*) FROM rows WHERE taken GROUP BY source")))

    def settle_groups(self) -> None:
        """Give the rows of groups that were found to be one the same group."""
        shorten = (
            "UPDATE merged SET parent = (SELECT next.parent FROM merged AS next WHERE next.grp = merged.parent)"
            " WHERE parent IN (SELECT grp FROM merged)"
        )
        while self.db.execute(shorten).rowcount > 0:
            pass
        self.db.execute(
            "UPDATE rows SET grp = (SELECT parent FROM merged WHERE merged.grp = rows.grp)"
            " WHERE grp IN (SELECT grp FROM merged)"
        )

    def _group(self, seq: int, equal: int | None, conversation: str | None) -> tuple[int, int]:
        """The row's group, joining those of its equals and its conversation; and whether it begins a conversation."""
        named = None
        if conversation is not None:
            query = "SELECT grp FROM conversations WHERE name = ?"
            named = self.db.execute(query, (conversation,)).fetchone()
        roots = {self._root(group) for group in (equal, named[0] if named else None) if group is not None}
        group = min(roots, default=seq)
        for other in roots - {group}:
            self.db.execute("INSERT INTO merged VALUES (?, ?)", (other, group))
        if conversation is not None and not named:
            self.db.execute("INSERT INTO conversations VALUES (?, ?)", (conversation, group))
        return group, int(named is None)

    def _root(self, group: int) -> int:
        """Follow merged groups to the one that stands for all of them, and shorten the way."""
        path = []
        while found := self.db.execute("SELECT parent FROM merged WHERE grp = ?", (group,)).fetchone():
            path.append(group)
            group = found[0]
        for passed in path[:-1]:
            self.db.execute("UPDATE merged SET parent = ? WHERE grp = ?", (group, passed))
        return group
