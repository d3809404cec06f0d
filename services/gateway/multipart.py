"""The `file` part of a multipart form, as a stream: nothing of it is kept in memory or in a temporary file."""

from collections.abc import AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from services.gateway.problems import Problem

FIELD = b"file"
HINT = "send one part named `file`, or the file itself as the body (curl --data-binary @FILE)"


class FilePart:
    """Takes pieces of a multipart body, gives the pieces of the part named `file`.

    Attributes:
        filename: the part's file name, once its headers have passed.
        found: whether there was such a part.
        ended: whether the closing boundary was seen.
    """

    def __init__(self, content_type: str) -> None:
        _, options = parse_options_header(content_type)
        if not options.get(b"boundary"):
            raise Problem(400, f"the Content-Type has no boundary: {HINT}")
        self.filename: str | None = None
        self.found = False
        self.ended = False
        self._inside = False
        self._headers: dict[bytes, bytes] = {}
        self._name, self._value = bytearray(), bytearray()
        self._pieces: list[bytes] = []
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._headers.clear,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise Problem(400, f"the form cannot be read: {error}") from None

    def feed(self, piece: bytes) -> list[bytes]:
        """The file's bytes that are in this piece of the body."""
        self._pieces = []
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise Problem(400, f"the form cannot be read: {error}; {HINT}") from None
        return self._pieces

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b"").decode("latin-1"))
        self._inside = options.get(b"name") == FIELD
        if not self._inside:
            return
        if self.found:
            raise Problem(422, f"the form has several files; {HINT}")
        self.found = True
        self.filename = options.get(b"filename", b"").decode("utf-8", "replace") or None

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._inside:
            self._pieces.append(data[start:end])

    def _on_end(self) -> None:
        self.ended = True


async def file_stream(part: FilePart, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The file's bytes, piece by piece.

    Raises:
        Problem: the form is damaged, cut, or has no part named `file`.
    """
    async for piece in body:
        for found in part.feed(piece):
            yield found
    if not part.found:
        raise Problem(422, f"the form has no file; {HINT}")
    if not part.ended:
        raise Problem(400, "the form ends before its closing boundary; send it again")
