"""Reads a tar archive as it arrives, gzipped or not, and hands its entries on piece by piece; nothing is held back.

Only regular files and folders exist here: links, devices and whatever else an archive can hold are refused by name, and
so is an archive that ends early. What names are good is the receiver's business.
"""

import tarfile
import zlib
from typing import NoReturn, Protocol

from shared.errors import UserError

BLOCK = tarfile.BLOCKSIZE
GZIP_MAGIC = b"\x1f\x8b"
INFLATED_PIECE = 1 << 20
MAX_EXTENDED_BYTES = 64 << 10  # a pax header: names and times of one entry
KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    tarfile.GNUTYPE_LONGNAME: "an entry with a very long name",
    tarfile.GNUTYPE_LONGLINK: "an entry with a very long name",
}
EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)


class Receiver(Protocol):
    """Takes the entries of an archive, in its order."""

    def folder(self, name: str) -> None:
        """A folder is named."""

    def begin(self, name: str, size: int) -> None:
        """A file of `size` bytes begins."""

    def write(self, piece: memoryview) -> None:
        """The next bytes of the file."""

    def end(self) -> None:
        """The file is whole."""

    def count(self, size: int) -> None:
        """So many bytes of the archive (not compressed) have come; may refuse."""


class TarStream:
    """Feed it an archive's bytes in pieces, then call `finish`."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._head = b""
        self._inflate: zlib._Decompress | None = None
        self._plain: bool | None = None
        self._archive = _Archive(receiver)

    def feed(self, piece: bytes) -> None:
        """Take the next bytes.

        Raises:
            UserError: this is no archive, or holds what is not taken.
        """
        if self._plain is None:
            self._head += piece
            if len(self._head) < len(GZIP_MAGIC):
                return
            piece, self._head = self._head, b""
            self._plain = not piece.startswith(GZIP_MAGIC)
        if self._plain:
            self._archive.feed(piece)
        else:
            self._feed_compressed(piece)

    def finish(self) -> None:
        """Make sure that the archive is whole.

        Raises:
            UserError
        """
        if self._inflate is not None and not self._inflate.eof:
            raise UserError("the compressed archive ends too early", hint="send it again")
        self._archive.finish()

    def _feed_compressed(self, piece: bytes) -> None:
        more = True
        while more:
            if self._inflate is None or self._inflate.eof:
                if not piece.strip(b"\0"):  # padding of tapes
                    return
                self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                out = self._inflate.decompress(piece, INFLATED_PIECE)
            except zlib.error as error:
                raise UserError(f"the compressed archive is damaged: {error}", hint="send it again") from None
            self._archive.feed(out)
            piece = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            more = bool(piece) or len(out) == INFLATED_PIECE


class _Archive:
    """The entries of an archive that is not compressed."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._buffer = bytearray()
        self._left = 0  # bytes of the current file that are to come
        self._padding = 0
        self._in_file = False
        self._ended = False
        self._extended: dict[str, str] = {}

    def feed(self, piece: bytes) -> None:
        self.receiver.count(len(piece))
        self._buffer += piece
        place = 0
        with memoryview(self._buffer) as view:
            while (step := self._step(view[place:])) > 0:
                place += step
        del self._buffer[:place]

    def finish(self) -> None:
        if self._left or self._padding or self._buffer.strip(b"\0") or not self._ended:
            raise UserError("the archive ends too early", hint="send it again")

    def _step(self, view: memoryview) -> int:
        """Handle what `view` begins with; returns the bytes that were used, 0 where more must come first."""
        if self._in_file:
            return self._content(view)
        if self._padding:
            used = min(self._padding, len(view))
            self._padding -= used
            return used
        if len(view) < BLOCK:
            return 0
        block = bytes(view[:BLOCK])
        if not block.strip(b"\0"):
            self._ended = True
            return BLOCK
        if self._ended:
            raise UserError("something follows the archive's end", hint="send one archive, made with tar or eyrie")
        return self._header(block, view)

    def _content(self, view: memoryview) -> int:
        piece = view[: self._left]
        if piece:
            self.receiver.write(piece)
            self._left -= len(piece)
        if not self._left:
            self._in_file = False
            self.receiver.end()
        return len(piece)

    def _header(self, block: bytes, view: memoryview) -> int:
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError):
            raise UserError(
                "this is not a tar archive, or it is damaged", hint="make it with: tar -C FOLDER -cf folder.tar ."
            ) from None
        if entry.type in EXTENDED:
            return self._extended_header(entry, view)
        name = self._extended.get("path", entry.name)
        size = int(self._extended.get("size", entry.size))
        self._extended = {}
        if entry.type == tarfile.DIRTYPE and not size:
            self.receiver.folder(name)
            return BLOCK
        if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or size < 0:
            _refuse(name, f"is {KINDS.get(entry.type, 'of an unknown kind')}; only regular files and folders are taken")
        self.receiver.begin(name, size)
        self._in_file, self._left, self._padding = True, size, -size % BLOCK
        if not size:
            self._content(view[:0])
        return BLOCK

    def _extended_header(self, entry: tarfile.TarInfo, view: memoryview) -> int:
        """A pax header, which says more about the entry that follows: only name and size matter here."""
        if not 0 <= entry.size <= MAX_EXTENDED_BYTES:
            _refuse(entry.name, "is an extended header of unlikely size")
        whole = BLOCK + entry.size + -entry.size % BLOCK
        if len(view) < whole:
            return 0
        records = _pax_records(bytes(view[BLOCK : BLOCK + entry.size]), entry.name)
        if any(key.startswith("GNU.sparse") for key in records):
            _refuse(entry.name, "is a sparse file; only regular files and folders are taken")
        if entry.type == tarfile.XGLTYPE:
            if records.keys() & {"path", "size", "linkpath"}:
                _refuse(entry.name, "gives all entries one name or size")
        else:
            self._extended = records
        return whole


def _pax_records(data: bytes, name: str) -> dict[str, str]:
    """The records `LENGTH KEY=VALUE\\n` of a pax header."""
    records: dict[str, str] = {}
    try:
        while data:
            length = int(data.split(b" ", 1)[0])
            record = data[:length]
            if length < 5 or not record.endswith(b"\n"):
                raise ValueError
            key, _, value = record[:-1].split(b" ", 1)[1].decode().partition("=")
            records[key] = value
            data = data[length:]
        int(records.get("size", 0))
    except (ValueError, IndexError):  # UnicodeDecodeError is a ValueError
        _refuse(name, "is a damaged extended header")
    return records


def _refuse(name: str, message: str) -> NoReturn:
    raise UserError(f"{name!r} {message}"[:500], hint="make the archive with: tar -C FOLDER -cf folder.tar .")
