"""Parquet files as rows of Python objects, batch by batch: a large row group needs no more memory than a small one.

Only the columns that a row may have are read. Arrow fills optional keys of a struct with null, so null means absent.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shared.data.refusal import RowRejected
from shared.errors import UserError

COLUMNS = ("prompt", "messages", "conversations", "input_ids", "loss_mask", "system", "tools", "conversation_id")
BATCH_ROWS = 512
BATCH_BYTES = 16 * 1024**2
BUFFER_BYTES = 1 << 20  # of a column chunk; without it a chunk is read whole


def read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any] | RowRejected]]:
    """Yield number (from 1) and fields of each row; a value that Python cannot hold is that row's refusal.

    Raises:
        UserError: the file is damaged.
    """
    file = open_parquet(path)
    number = 0
    for batch in read_batches(file):
        for row in _rows(batch):
            number += 1
            yield number, row


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file and look at its footer.

    Raises:
        UserError: it is no whole Parquet file, or has one of our columns twice.
    """
    try:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES)
        names = list(file.schema_arrow.names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged("the footer cannot be read", error) from None
    twice = [name for name in COLUMNS if names.count(name) > 1]
    if twice:
        raise UserError(f"the file has the column {twice[0]} {names.count(twice[0])} times", hint="drop one of them")
    return file


def read_batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Yield the file's known columns in batches of bounded size.

    Raises:
        UserError: a page is damaged.
    """
    columns = [name for name in COLUMNS if name in file.schema_arrow.names]
    for group in range(file.num_row_groups if columns else 0):
        size = _batch_rows(file.metadata.row_group(group))
        try:
            yield from file.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(f"row group {group + 1} cannot be read", error) from None


def _batch_rows(group: pq.RowGroupMetaData) -> int:
    """As many rows as fit in `BATCH_BYTES`, also where all of them repeat the longest entry of a dictionary."""
    dictionaries: int = 0
    for index in range(group.num_columns):
        chunk = group.column(index)
        if chunk.dictionary_page_offset is not None and chunk.total_compressed_size > 0:
            packed = max(0, chunk.data_page_offset - chunk.dictionary_page_offset)
            dictionaries += packed * chunk.total_uncompressed_size // chunk.total_compressed_size
    average = int(group.total_byte_size) // max(1, int(group.num_rows))
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, average), 4 * BATCH_BYTES // max(1, dictionaries)))


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | RowRejected]:
    nested = [field.name for field in batch.schema if not _plain(field.type)]
    try:
        rows = batch.to_pylist(maps_as_pydicts="lossy")
    except (ValueError, OverflowError):  # text that is not UTF-8, a date that Python has not: find the row
        if batch.num_rows > 1:
            for index in range(batch.num_rows):
                yield from _rows(batch.slice(index, 1))
        else:
            yield RowRejected("not_utf8", "holds text that is not UTF-8, or another value that cannot be read")
        return
    for row in rows:
        for name in nested:
            row[name] = _without_nulls(row[name])
        yield row


def _plain(kind: pa.DataType) -> bool:
    """Whether values of a type hold no keys and no bytes: lists of numbers above all, which are long."""
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, bytes):  # text of writers that do not say that it is
        return value.decode("utf-8", "surrogateescape")
    return value


def _damaged(what: str, error: Exception) -> UserError:
    reason = str(error).split("\n", 1)[0][:200]
    return UserError(f"the Parquet file is damaged, {what}: {reason}", hint="write or send the file again")
