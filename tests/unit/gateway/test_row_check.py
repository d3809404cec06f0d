"""Rows are checked alike however the network cuts the file."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.row_check import RowChecker
from shared.errors import UserError

pytestmark = pytest.mark.data


def outcome(content: bytes, sizes: list[int]) -> tuple[int, str]:
    checker = RowChecker(1024)
    try:
        for size in sizes:
            checker.feed(content[:size])
            content = content[size:]
        checker.feed(content)
        checker.finish()
    except UserError as error:
        return -1, str(error)
    return checker.rows, ""


LINES = st.sampled_from(
    [b'{"a": 1}', b"", b"  ", b"\r", b"[1]", b"{", b'{"a": "\xff"}', '{"a": "ü"}'.encode(), b"\xef\xbb\xbf{}"]
)


@settings(deadline=None)
@given(st.lists(LINES, max_size=8), st.lists(st.integers(0, 20), max_size=8))
def test_pieces_do_not_matter(lines: list[bytes], sizes: list[int]) -> None:
    content = b"\n".join(lines)
    assert outcome(content, sizes) == outcome(content, [])


SHORT_ROWS = st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=4)


@settings(deadline=None)
@given(st.lists(SHORT_ROWS, min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_every_json_object_is_a_row(rows: list[dict[str, str]], newline: str) -> None:
    content = newline.join(json.dumps({**row, "prompt": "x"}, ensure_ascii=False) for row in rows)
    assert outcome(content.encode("utf-8"), []) == (len(rows), "")


def test_the_length_of_a_line_is_bounded_before_its_end_is_seen() -> None:
    checker = RowChecker(1024)
    checker.feed(b"{}\n" + b"x" * 600)
    with pytest.raises(UserError, match="line 2: longer than 1024 bytes"):
        checker.feed(b"x" * 600)


def test_a_line_of_exactly_the_limit_is_fine() -> None:
    row = b'{"prompt": "' + b"x" * (1024 - 14) + b'"}'
    assert len(row) == 1024
    assert outcome(row + b"\n", [])[0] == 1
    assert "longer" in outcome(b" " + row + b"\n", [])[1]
