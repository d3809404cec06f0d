"""Lines of logs as processes write them: progress bars, bytes that are no UTF-8, no ends, and far too long ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.log_lines import MAX_LINE_BYTES, read_lines, tail_offset


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "train-1.log"


def texts(path: Path, offset: int = 0, *, complete: bool = True) -> list[str]:
    return [line.text for line in read_lines(path, offset, 1000, complete=complete)]


CONTENTS = {
    "a progress bar": (b"start\n 10%\r 50%\r100%\nend\n", ["start", "100%", "end"]),
    "Windows' ends": (b"one\r\ntwo\r\n", ["one", "two"]),
    "no UTF-8": (b"ok \xff\xfe\n", ["ok \ufffd\ufffd"]),
    "empty lines": (b"\n\na\n", ["", "", "a"]),
    "a null byte": (b"a\x00b\n", ["a\x00b"]),
    "no end": (b"a\nhalf", ["a", "half"]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_line_is_what_a_terminal_would_show(kind: str, path: Path) -> None:
    content, expected = CONTENTS[kind]
    path.write_bytes(content)
    assert texts(path) == expected


def test_a_half_written_line_waits_for_its_end(path: Path) -> None:
    path.write_bytes(b"one\ntw")
    (line,) = read_lines(path, 0, 10, complete=False)
    assert (line.text, line.end) == ("one", 4)
    assert read_lines(path, line.end, 10, complete=False) == []
    with path.open("ab") as file:
        file.write(b"o\n")
    assert texts(path, line.end, complete=False) == ["two"]


def test_a_very_long_line_comes_in_pieces_between_characters(path: Path) -> None:
    text = "ä€😀" * 30_000
    path.write_bytes(f"{text}\nnext\n".encode())
    found, offset = [], 0
    while lines := read_lines(path, offset, 10, complete=False):
        found += [line.text for line in lines]
        offset = lines[-1].end
    assert found[-1] == "next"
    assert "".join(found[:-1]) == text
    assert max(len(piece.encode()) for piece in found) <= MAX_LINE_BYTES


@given(st.lists(st.binary(max_size=30)), st.binary(max_size=10), st.integers(1, 12), st.integers(0, 400))
def test_reading_on_from_any_line_gives_the_rest(
    path: Path, lines: list[bytes], rest: bytes, tail: int, cut: int
) -> None:
    content = b"".join(line + b"\n" for line in lines) + rest
    path.write_bytes(content)
    whole = read_lines(path, 0, 10_000, complete=True)
    for line in whole:
        assert read_lines(path, line.end, 10_000, complete=True) == whole[whole.index(line) + 1 :]
        if line.end <= cut and content[: line.end].endswith(b"\n"):
            path.write_bytes(content[:cut])
            assert line in read_lines(path, 0, 10_000, complete=False)
            path.write_bytes(content)
    offset, count = tail_offset(path, tail)
    assert read_lines(path, offset, 10_000, complete=True) == whole[-tail:]
    assert count == len(whole[-tail:])
