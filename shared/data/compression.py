"""Tells what a file is by its first bytes, and unpacks gzip piece by piece, in bounded memory."""

import zlib
from collections.abc import Generator, Iterator
from typing import Literal

from shared.errors import UserError

Kind = Literal["jsonl", "gzip", "parquet"]
MAGIC: dict[bytes, Kind] = {b"\x1f\x8b": "gzip", b"PAR1": "parquet"}
NOT_READ = {
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"ARROW1": "an Arrow file",
    b"Obj\x01": "an Avro file",
}
SLICE_BYTES = 1 << 16
UNPACKED_BYTES = 1 << 18
GZIP_WINDOW = 31  # zlib's way to ask for a gzip header and its checksum


def file_kind(head: bytes) -> Kind:
    """What a file is that begins with `head` (6 bytes are enough); text is taken for JSONL.

    Raises:
        UserError: it is of a kind that is known but not read.
    """
    for magic, name in NOT_READ.items():
        if head.startswith(magic):
            hint = "datasets are JSONL, plain or gzip, or Parquet: convert the file"
            raise UserError(f"the file is {name}, which is not read", where="byte 1", hint=hint)
    return next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), "jsonl")


class Gunzip:
    """Feed it a gzip file's bytes in pieces, then call `finish`. Several members in a row are one file."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(GZIP_WINDOW)
        self._begun = False  # whether bytes of the current member were seen
        self._members = 0
        self._read = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield what is in `piece`, in parts of at most `UNPACKED_BYTES`.

        Raises:
            UserError: the data is damaged.
        """
        for start in range(0, len(piece), SLICE_BYTES):
            packed = piece[start : start + SLICE_BYTES]
            yield from self._unpack(packed)
            self._read += len(packed)

    def finish(self) -> None:
        """Make sure that the last member is whole.

        Raises:
            UserError: the data was cut.
        """
        if self._begun or not self._members:
            raise UserError(
                "the gzip data ends before its end mark: the file was cut",
                where=f"byte {self._read}",
                hint="send it again; `gzip -t FILE` tells whether the file itself is whole",
            )

    def _unpack(self, packed: bytes) -> Iterator[bytes]:
        while packed:
            if self._members and not self._begun:
                packed = packed.lstrip(b"\0")  # some writers fill the last block up
                if not packed:
                    return
            self._begun = True
            packed = yield from self._unpack_member(packed)

    def _unpack_member(self, packed: bytes) -> Generator[bytes, None, bytes]:
        member = self._member
        while True:
            try:
                unpacked = member.decompress(packed, UNPACKED_BYTES)
            except zlib.error as error:
                raise self._damaged(error) from None
            if unpacked:
                yield unpacked
            if member.eof:
                self._member, self._begun = zlib.decompressobj(GZIP_WINDOW), False
                self._members += 1
                return member.unused_data
            packed = member.unconsumed_tail
            if not packed and len(unpacked) < UNPACKED_BYTES:
                return b""

    def _damaged(self, error: zlib.error) -> UserError:
        after = " after the end of the data" if self._members and "header" in str(error) else ""
        return UserError(
            f"the gzip data is damaged{after}: {error}",
            where=f"near byte {self._read + 1}",
            hint="`gzip -t FILE` tells whether the file itself is whole; JSONL may also be sent unpacked",
        )
