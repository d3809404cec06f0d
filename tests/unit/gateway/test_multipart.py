"""The file part of a form comes out byte for byte, however the network cuts the form."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.multipart import FilePart
from services.gateway.problems import Problem

TYPE = "multipart/form-data; boundary=xyz"


def form(content: bytes, name: str = "file") -> bytes:
    head = f'--xyz\r\nContent-Disposition: form-data; name="{name}"; filename="p.jsonl"\r\n\r\n'
    other = '--xyz\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n'
    return other.encode() + head.encode() + content + b"\r\n--xyz--\r\n"


@settings(deadline=None)
@given(st.binary(max_size=200).filter(lambda b: b"--xyz" not in b), st.lists(st.integers(0, 60), max_size=8))
def test_the_file_comes_out_whole(content: bytes, sizes: list[int]) -> None:
    part, body, found = FilePart(TYPE), form(content), b""
    for size in [*sizes, len(body)]:
        found += b"".join(part.feed(body[:size]))
        body = body[size:]
    assert (found, part.found, part.ended, part.filename) == (content, True, True, "p.jsonl")


def test_a_cut_form_is_seen() -> None:
    part = FilePart(TYPE)
    part.feed(form(b"abc")[:-6])
    assert not part.ended


def test_two_files_are_refused() -> None:
    part = FilePart(TYPE)
    with pytest.raises(Problem, match="several files"):
        part.feed(form(b"abc").replace(b"\r\n--xyz--", b"\r\n") + form(b"abc"))


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=" + "x" * 5000])
def test_a_form_without_a_usable_boundary_is_refused(content_type: str) -> None:
    with pytest.raises(Problem):
        FilePart(content_type)
