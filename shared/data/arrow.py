"""Arrow files of ready-made rows, read with pyarrow alone: nothing in a file can name another one, or code."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from shared.errors import UserError


def count_rows(path: Path) -> int:
    """How many rows an Arrow file has; of their content only one column is looked at, and only its sizes.

    Raises:
        UserError: it is no Arrow stream, is truncated, or lacks a column.
    """
    return sum(batch.num_rows for batch in _batches(path, full=False))


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow file, each checked for offsets that leave it.

    Raises:
        UserError: see `count_rows`; or the content is damaged.
    """
    return _batches(path, full=True)


def _batches(path: Path, *, full: bool) -> Iterator[pa.RecordBatch]:
    try:
        with pa.memory_map(str(path)) as source:
            schema = pa.ipc.open_stream(source).schema
            check_schema(schema, path.name)
            source.seek(0)
            fields = range(len(schema)) if full else [schema.get_field_index("input_ids")]
            for batch in pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(included_fields=list(fields))):
                batch.validate(full=full)
                yield batch
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def check_schema(schema: pa.Schema, name: str) -> None:
    """Make sure that the columns of rows are there.

    Raises:
        UserError
    """
    for column in ("input_ids", "loss_mask"):
        place = schema.get_field_index(column)
        if place < 0:
            raise UserError(
                f"has no column {column}, only {schema.names[:10]}",
                where=name,
                hint="rows need input_ids and loss_mask, as speculators' prepare-data writes them",
            )
        kind = schema.field(place).type
        listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        whole = listed and (pa.types.is_integer(kind.value_type) or pa.types.is_boolean(kind.value_type))
        if not whole:
            raise UserError(f"column {column} has type {kind}, wanted are lists of integers", where=name)


def _unreadable(path: Path, error: Exception) -> UserError:
    problem = (str(error) or type(error).__name__).splitlines()[0]
    return UserError(
        f"is not a readable Arrow file: {problem}"[:300], where=path.name, hint="save it with Dataset.save_to_disk"
    )
