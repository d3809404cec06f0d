"""The same rows as files of every form that is read."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def spellings(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Path]:
    """Write rows as JSONL in all its spellings, as gzip, and as Parquet; by the name of the spelling."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
    plain = b"\n".join(lines) + b"\n"
    half = len(plain) // 2
    contents = {
        "plain": plain,
        "byte order mark": b"\xef\xbb\xbf" + plain,
        "CRLF": b"\r\n".join(lines) + b"\r\n",
        "no last newline": b"\n".join(lines),
        "spaces round rows": b"\n".join(b" \t" + line + b"  " for line in lines) + b"\n",
        "gzip": gzip.compress(plain),
        "gzip of a file with byte order mark": gzip.compress(b"\xef\xbb\xbf" + plain),
        "gzip in two members": gzip.compress(plain[:half]) + gzip.compress(plain[half:]),
        "gzip filled up with zeros": gzip.compress(plain) + b"\0" * 512,
    }
    files = {}
    for name, content in contents.items():
        files[name] = folder / f"{name}.jsonl"
        files[name].write_bytes(content)
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    layouts: dict[str, dict[str, Any]] = {
        "parquet": {},
        "parquet in small row groups": {"row_group_size": 3, "compression": "gzip"},
        "parquet without dictionaries": {"use_dictionary": False, "compression": "none", "version": "1.0"},
    }
    for name, options in layouts.items():
        files[name] = folder / f"{name}.parquet"
        pq.write_table(table, files[name], **options)
    return files
