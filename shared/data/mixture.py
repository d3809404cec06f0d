"""Decides which accepted rows a job takes and which it holds out: by seeded hash rank, with exact counts.

Neither depends on the order of a file: equal rows and an equal seed give an equal choice.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from shared.data.dataset_record import source_names
from shared.data.ready_rows import held_out_lines
from shared.data.row_index import RowIndex
from shared.data.shares import quotas, validation_shares
from shared.errors import UserError
from shared.schemas.registry import DatasetRecord
from shared.schemas.spec import DataSpec

MIN_CONVERSATIONS = 2  # one to train on and one to hold out


def open_index(file: Path, record: DatasetRecord, data: DataSpec) -> RowIndex:
    """A new index for a dataset's rows. `data.limit` counts rows as they come, unless several sources share it."""
    limit = None if _is_mixed(record, data) else data.limit
    return RowIndex(file, source_names(record), deduplicate=data.deduplicate, limit=limit)


def choose_rows(index: RowIndex, folder: Path, record: DatasetRecord, data: DataSpec) -> None:
    """Take rows by weight where several sources share the job, then choose the validation side.

    Raises:
        UserError: a source would not be represented, or one side would be empty.
    """
    if _is_mixed(record, data):
        take_quotas(index, [file.weight for file in record.files], data.limit, data.seed)
    hold_out_by_rule(index, folder, record, data)


def take_quotas(index: RowIndex, weights: list[float | None], limit: int | None, seed: int) -> None:
    """Take of each source what its weight allows, and enter the other rows as `over_quota`.

    Without weights the sources' own sizes are theirs.

    Raises:
        UserError: a source would not be represented.
    """
    available = [index.taken()[number] for number in range(len(index.sources))]
    _require_rows(index, available, "has no usable row")
    shares = [rows if weight is None else weight for rows, weight in zip(available, weights, strict=True)]
    wanted = quotas(available, shares, limit)
    _require_rows(index, wanted, f"would give none of {sum(wanted)} rows by its weight")
    index.db.create_function("pick", 1, lambda row_id: _rank(f"pick:{seed}", row_id), deterministic=True)
    for number, (quota, rows) in enumerate(zip(wanted, available, strict=True)):
        if quota == rows:
            continue
        message = f"its source gives {quota} of {rows} rows by its weight"
        index.db.execute(
            "UPDATE rows SET taken = 0 WHERE seq IN"
            " (SELECT seq FROM rows WHERE source = ? ORDER BY pick(id), seq LIMIT -1 OFFSET ?)",
            (number, quota),
        )
        index.db.execute(
            "INSERT INTO rejects SELECT source, line, 'over_quota', ? FROM rows WHERE source = ? AND NOT taken",
            (message, number),
        )


def hold_out(index: RowIndex, val_ratio: float, seed: int) -> None:
    """Choose the conversations of the validation side: exactly `round(n * val_ratio)`, each source with its share.

    Rows of one conversation, and equal ones, stay together. Where such groups leave no exact choice, it is a
    smaller one.

    Raises:
        UserError: all rows are of one group, so that nothing can be held out.
    """
    index.settle_groups()
    index.db.create_function("rank", 1, lambda row_id: _rank(str(seed), row_id), deterministic=True)
    index.db.execute(
        "INSERT INTO groups SELECT grp, MIN(source), MAX(1, SUM(first)), rank(MIN(id))"
        " FROM rows WHERE taken GROUP BY grp ORDER BY grp"
    )
    sizes = dict(index.db.execute("SELECT source, SUM(conversations) FROM groups GROUP BY source"))
    _require_two_groups(index)
    shares = dict(zip(sizes, validation_shares(list(sizes.values()), val_ratio), strict=True))
    missing = 0
    for source, share in shares.items():
        missing += _fill(index, "source = ?", (source,), share)
    if missing:
        missing = _fill(index, "grp NOT IN (SELECT grp FROM held_out)", (), missing)
    if missing == sum(shares.values()):  # every group is too large
        index.db.execute("INSERT INTO held_out SELECT grp FROM groups ORDER BY conversations, rank LIMIT 1")


def hold_out_by_rule(index: RowIndex, folder: Path, record: DatasetRecord, data: DataSpec) -> None:
    """Choose the validation side as a job does: the one that ready-made rows have already, else by hash rank.

    Raises:
        UserError: one side would be empty.
    """
    given = held_out_lines(folder, record) if record.kind == "rows" else None
    if given is None:
        hold_out(index, data.val_ratio, data.seed)
    else:
        hold_out_as_given(index, given)


def hold_out_as_given(index: RowIndex, lines: Iterable[int]) -> None:
    """Hold out the rows with these lines, and all that belong together with one of them.

    Raises:
        UserError: that leaves one side empty.
    """
    index.settle_groups()
    index.db.execute("CREATE TEMP TABLE given (line INTEGER PRIMARY KEY)")
    index.db.executemany("INSERT INTO given VALUES (?)", ((line,) for line in lines))
    index.db.execute("INSERT INTO held_out SELECT DISTINCT grp FROM rows JOIN given USING (line) WHERE taken")
    sides = [
        side for (side,) in index.db.execute("SELECT DISTINCT grp IN (SELECT grp FROM held_out) FROM rows WHERE taken")
    ]
    if len(sides) < 2:
        raise UserError(
            "all usable rows stand on one side of the split that rows.jsonl gives",
            where="dataset",
            hint="both are needed: give rows of both, or leave rows.jsonl out, so that data.val_ratio decides",
        )


def chosen(index: RowIndex) -> Iterator[tuple[str, int, str, bool, bool]]:
    """Yield source, line, id, whether it is taken and whether it is held out, of each accepted row, in order."""
    rows = index.db.execute(
        "SELECT source, line, id, taken, held_out.grp IS NOT NULL"
        " FROM rows LEFT JOIN held_out ON held_out.grp = rows.grp ORDER BY seq"
    )
    for source, line, row_id, taken, held_out in rows:
        yield index.sources[source], line, row_id, bool(taken), bool(held_out)


def _is_mixed(record: DatasetRecord, data: DataSpec) -> bool:
    weighted = any(file.weight is not None for file in record.files)
    return len(source_names(record)) > 1 and (weighted or data.limit is not None)


def _fill(index: RowIndex, where: str, values: tuple[int, ...], room: int) -> int:
    """Hold out groups by rank as long as they fit; return how many conversations are still missing."""
    if not room:
        return 0
    groups = index.db.execute(f"SELECT grp, conversations FROM groups WHERE {where} ORDER BY rank, grp", values)  # noqa: S608
    for group, conversations in groups:
        if conversations <= room:
            index.db.execute("INSERT INTO held_out VALUES (?)", (group,))
            room -= conversations
        if not room:
            break
    return room


def _rank(salt: str, row_id: str) -> bytes:
    return hashlib.sha256(f"{salt}:{row_id}".encode()).digest()


def _require_rows(index: RowIndex, counts: list[int], problem: str) -> None:
    for name, count in zip(index.sources, counts, strict=True):
        if not count:
            first = next((r for r in index.rejects() if r.source == name), None)
            why = f"; first: line {first.line} {first.message}" if first else ""
            raise UserError(
                f"the source {name} {problem}{why}",
                where="dataset",
                hint="every source must be represented: mend or leave out the source, change its weight, or data.limit",
            )


def _require_two_groups(index: RowIndex) -> None:
    (groups,) = index.db.execute("SELECT COUNT(*) FROM (SELECT 1 FROM groups LIMIT 2)").fetchone()
    if groups == 1 and index.accepted > 1:
        raise UserError(
            f"all {index.accepted} rows are equal, or of one conversation: none can be held out",
            where="dataset",
            hint="rows of one conversation never face each other; give at least two conversations",
        )
