"""Files as rows: the same in every spelling, with a person's line numbers, and a clear word where one is damaged."""

import datetime
import decimal
import gzip
import itertools
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.data import parquet
from shared.data.compression import Gunzip, file_kind
from shared.data.dataset_record import read_record
from shared.data.files import read_rows
from shared.data.jsonl import LineSplitter
from shared.data.parquet import open_parquet, read_batches
from shared.data.refusal import RowRejected
from shared.data.row_reader import RowReader
from shared.errors import ArtifactStoreError, UserError
from shared.schemas.spec import DataSpec
from tests.support.dataset_files import spellings
from tests.support.stage_runs import write_dataset

pytestmark = pytest.mark.data

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}
ROWS = [
    {"messages": [{"role": "user", "content": "größer \u2028 als\r\n日本 🙂"}]},
    {
        "messages": [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
        ]
    },
    {"system": "be brief", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "\ufeffa"}]},
    {"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "function", "function": {"name": "look"}}]},
]


def accepted(folder, **data):
    """What a reader makes of a dataset: line, and content or reason."""
    reader = RowReader(DataSpec(dataset="ds_x", **data), ["<|im_end|>"], 512)
    found = []
    for raw in read_rows(folder, read_record(folder)):
        try:
            row = reader.read(raw)
            found.append((raw.line, row.identity, row.text))
        except RowRejected as refusal:
            found.append((raw.line, refusal.reason, refusal.message))
    return found


def dataset(tmp_path, content, name="x.jsonl"):
    path = tmp_path / name
    path.write_bytes(content)
    return write_dataset(tmp_path / f"ds_{name}", path)


def table(tmp_path, value, name="x.parquet", **options):
    path = tmp_path / name
    pq.write_table(value, path, **options)
    return write_dataset(tmp_path / f"ds_{name}", path)


def test_the_same_rows_in_every_spelling_are_the_same_rows(tmp_path):
    read = {
        name: accepted(write_dataset(tmp_path / f"ds_{number}", path))
        for number, (name, path) in enumerate(spellings(tmp_path / "files", ROWS).items())
    }
    assert [len(rows) for rows in read.values()] == [len(ROWS)] * len(read)
    for name, rows in read.items():
        assert rows == read["plain"], name
    assert "\ufeffa" in read["plain"][2][2]  # a byte order mark in a text is text


def test_blank_lines_are_skipped_and_line_numbers_stay_the_files(tmp_path):
    folder = dataset(tmp_path, b'\n{"prompt": "a"}\n  \t\r\n\xef\xbb\xbf{"prompt": "b"}\n\xef\xbb\xbf\n{"prompt": "c"}')
    assert [line for line, *_ in accepted(folder)] == [2, 4, 6]


EMPTY = {"nothing": b"", "BOM": b"\xef\xbb\xbf", "blank lines": b"\n\r\n  \n"}
EMPTY |= {f"gzip of {name}": gzip.compress(content) for name, content in EMPTY.items()}


@pytest.mark.parametrize("content", EMPTY.values(), ids=EMPTY)
def test_a_file_without_rows_has_none(tmp_path, content):
    assert accepted(dataset(tmp_path, content)) == []


def test_a_line_that_is_not_utf8_is_refused_alone(tmp_path):
    found = accepted(dataset(tmp_path, b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n{"prompt": "b"}\n'))
    assert [reason for _, reason, _ in found][1] == "not_utf8"
    assert len(found) == 3


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"a", b"", b" ", b"\r", b"\xef\xbb\xbfb", b"c" * 40]), max_size=8),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_lines_do_not_depend_on_the_pieces(lines, sizes):
    content = b"\n".join(lines)

    def cut(sizes):
        splitter, rest, found = LineSplitter(), content, []
        for size in sizes:
            found += splitter.feed(rest[:size])
            rest = rest[size:]
        return [*found, *splitter.feed(rest), *splitter.finish()]

    expected = [(n, line.removeprefix(b"\xef\xbb\xbf").strip()) for n, line in enumerate(lines, 1)]
    assert cut(sizes) == [(number, line) for number, line in expected if line]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=4), st.integers(1, 600))
def test_gzip_does_not_depend_on_members_and_pieces(parts, size):
    packed = b"".join(gzip.compress(part) for part in parts)
    gunzip = Gunzip()
    pieces = [packed[i : i + size] for i in range(0, len(packed), size)]
    unpacked = b"".join(itertools.chain.from_iterable(gunzip.feed(piece) for piece in pieces))
    gunzip.finish()
    assert unpacked == b"".join(parts)


PACKED = gzip.compress("".join(f'{{"prompt": "{random.Random(n).random()}"}}\n' for n in range(500)).encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (PACKED[:-1], "was cut"),
        (PACKED[:-9], "was cut"),
        (PACKED[: len(PACKED) // 2], "was cut"),
        (PACKED[:5], "was cut"),
        (PACKED[:-8] + b"\1\2\3\4" + PACKED[-4:], "damaged"),
        (PACKED[:2000] + bytes([PACKED[2000] ^ 0xFF]) + PACKED[2001:], "damaged"),
        (PACKED + b"tail", "damaged after the end"),
        (PACKED + PACKED[:100], "was cut"),
        (b"\x1f\x8b\x07" + PACKED[3:], "damaged"),
    ],
    ids=["last byte", "checksum", "half", "header", "other checksum", "flipped", "tail", "cut member", "other method"],
)
def test_gzip_that_is_cut_or_damaged_is_the_users_error_with_the_place(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as caught:
        accepted(dataset(tmp_path, content))
    assert "byte" in caught.value.where
    assert caught.value.hint


def test_a_gzip_bomb_is_met_in_small_pieces():
    splitter, bomb = LineSplitter(max_row_bytes=1 << 20), gzip.compress(b"x" * (64 << 20))
    pieces = list(itertools.islice(Gunzip().feed(bomb), 3))
    assert max(map(len, pieces)) <= 1 << 18
    with pytest.raises(UserError, match="line 1: longer than 1048576 bytes"):
        list(itertools.chain.from_iterable(map(splitter.feed, Gunzip().feed(bomb))))


@pytest.mark.parametrize(
    ("head", "name"),
    [(b"\x28\xb5\x2f\xfd..", "Zstandard"), (b"PK\x03\x04..", "zip"), (b"BZh91A", "bzip2"), (b"ARROW1", "Arrow")],
)
def test_files_of_other_kinds_are_named(head, name):
    with pytest.raises(UserError, match=name):
        file_kind(head)


def test_what_a_file_is_follows_from_its_first_bytes_alone():
    assert [file_kind(head) for head in (b"PAR1", b"\x1f\x8b\x08", b'{"prom', b"", b"P")] == [
        "parquet",
        "gzip",
        "jsonl",
        "jsonl",
        "jsonl",
    ]


def test_a_file_that_the_store_lost_is_the_stores_error(tmp_path):
    folder = dataset(tmp_path, b'{"prompt": "a"}\n')
    (folder / "files" / "0.jsonl").unlink()
    with pytest.raises(ArtifactStoreError, match=r"files/0.jsonl"):
        accepted(folder)


TURNS = [{"role": "user", "content": "q", "name": None}, {"role": "assistant", "content": "a", "name": "b"}]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["q", "r"], pa.large_string()),
        pa.array(["q", "r"]).dictionary_encode(),
        pa.array([b"q", b"r"], pa.binary()),
        pa.array([b"q", b"r"], pa.large_binary()),
        pa.array(["q", "r"], pa.string_view()),
    ],
    ids=["large", "dictionary", "binary", "large binary", "view"],
)
def test_text_of_every_parquet_type_is_text(tmp_path, column):
    found = accepted(table(tmp_path, pa.table({"prompt": column})))
    expected = accepted(dataset(tmp_path, b'{"prompt": "q"}\n{"prompt": "r"}\n'))
    assert found == expected


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint16(), pa.int64(), pa.uint64()])
def test_token_ids_of_every_parquet_type_are_numbers(tmp_path, kind):
    ids = pa.array([[1, 2, 3], [4, 5, 6]], pa.large_list(kind))
    masks = pa.array([[False, True, True], [False, False, True]], pa.list_(pa.bool_()))
    found = accepted(table(tmp_path, pa.table({"input_ids": ids, "loss_mask": masks})), generate=False)
    assert [text for *_, text in found] == [
        '{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}',
        '{"input_ids": [4, 5, 6], "loss_mask": [0, 0, 1]}',
    ]


def test_columns_that_are_not_known_are_not_even_read(tmp_path):
    others = {
        "when": pa.array([datetime.date(2026, 1, 1), None]),
        "a.b": pa.array([1, 2]),
        "price": pa.array([decimal.Decimal("1.5"), None]),
        "score": pa.array([float("nan"), 1.0]),
        "label": pa.array([b"\xff", None]),
    }
    found = accepted(table(tmp_path, pa.table({"prompt": ["q", "r"], **others})))
    assert found == accepted(dataset(tmp_path, b'{"prompt": "q"}\n{"prompt": "r"}\n'))


def test_keys_that_arrow_fills_with_null_are_absent(tmp_path):
    turn = pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("tool_calls", pa.list_(pa.struct([("id", pa.string())]))),
            ("reasoning_content", pa.string()),
            ("function_call", pa.struct([("name", pa.string())])),
        ]
    )
    rows = {"messages": pa.array([TURNS], pa.list_(turn)), "prompt": pa.array([None], pa.string())}
    turns = [{"role": item["role"], "content": item["content"]} for item in TURNS]
    found = accepted(table(tmp_path, pa.table(rows)))
    assert found == accepted(dataset(tmp_path, json.dumps({"messages": turns}).encode()))


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([datetime.date(2026, 1, 1)]), "bad_content"),
        (pa.array([decimal.Decimal("1.5")]), "bad_content"),
        (pa.array([5.0]), "bad_content"),
        (pa.array([b"\xff\xfe"]), "not_text"),
        (pa.array([["a"]]), "bad_content"),
        (pa.array([None], pa.string()), "no_conversation"),
        (pa.array([2**62], pa.timestamp("us")), "not_utf8"),
    ],
    ids=["date", "decimal", "number", "bytes", "list", "null", "no such date"],
)
def test_values_that_are_no_text_are_refused_by_row(tmp_path, column, reason):
    ((line, found, _),) = accepted(table(tmp_path, pa.table({"prompt": column})))
    assert (line, found) == (1, reason)


def test_text_that_is_not_utf8_in_parquet_is_refused_by_row(tmp_path):
    good = pa.array([b"a", b"caf\xe9", b"b"], pa.binary())
    lie = pa.Array.from_buffers(pa.string(), 3, good.buffers())
    found = accepted(table(tmp_path, pa.table({"prompt": lie})))
    assert [reason for _, reason, _ in found][1] == "not_utf8"
    assert [line for line, *_ in found] == [1, 2, 3]


def test_maps_become_objects(tmp_path):
    arguments = pa.array([[("city", "Oslo")]], pa.map_(pa.string(), pa.string()))
    function = pa.StructArray.from_arrays([pa.array(["look"]), arguments], ["name", "arguments"])
    call = pa.StructArray.from_arrays([pa.array(["c1"]), pa.array(["function"]), function], ["id", "type", "function"])
    calls = pa.ListArray.from_arrays(pa.array([0, 0, 1], pa.int32()), pa.concat_arrays([call]))
    turns = pa.StructArray.from_arrays(
        [pa.array(["user", "assistant"]), pa.array(["weather?", None]), calls], ["role", "content", "tool_calls"]
    )
    column = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), turns)
    found = accepted(table(tmp_path, pa.table({"messages": column})))
    assert found == accepted(dataset(tmp_path, json.dumps(ROWS[1]).encode()))


@pytest.mark.parametrize("groups", [0, 1])
def test_parquet_without_rows_has_none(tmp_path, groups):
    path = tmp_path / "empty.parquet"
    schema = pa.schema([("prompt", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(groups):
            writer.write_table(pa.table({"prompt": pa.array([], pa.string())}))
    assert accepted(write_dataset(tmp_path / "ds_empty", path)) == []


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    value = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"])
    with pytest.raises(UserError, match="column prompt 2 times"):
        accepted(table(tmp_path, value))


def test_damaged_parquet_is_the_users_error(tmp_path):
    path = tmp_path / "x.parquet"
    prompts = [str(random.Random(n).random()) for n in range(2000)]
    pq.write_table(pa.table({"prompt": prompts}), path, compression="gzip", use_dictionary=False)
    whole = path.read_bytes()
    middle = len(whole) // 2
    for content in (whole[:middle], b"PAR1", b"PAR1PAR1", whole[:100] + b"\0" * 3000 + whole[3100:]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="Parquet file is damaged"):
            accepted(write_dataset(tmp_path / f"ds_{len(list(tmp_path.iterdir()))}", path))


@pytest.mark.parametrize("repeated", [False, True], ids=["long rows", "one long text for all rows"])
def test_a_huge_row_group_is_read_in_small_batches(tmp_path, monkeypatch, repeated):
    monkeypatch.setattr(parquet, "BATCH_BYTES", 1 << 20)
    text = "x" * 200_000
    prompts = [text if repeated else f"{n} {text}" for n in range(100)]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"prompt": prompts}), path, row_group_size=100, compression="zstd")
    sizes = [(batch.num_rows, batch.nbytes) for batch in read_batches(open_parquet(path))]
    assert sum(rows for rows, _ in sizes) == 100
    assert max(size for _, size in sizes) <= 10 << 20
