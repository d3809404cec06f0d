"""Takes a folder as a tar stream: ready-made rows, or a vocabulary. Entries are checked and hashed as they pass.

Files go to a staging folder that has no key; only when the archive is whole and what it holds is recognised does the
folder become a dataset. A bad or cut upload leaves nothing behind.
"""

import hashlib
import os
import re
import shutil
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, NoReturn

from starlette.concurrency import run_in_threadpool

from services.gateway.checksums import Checksum
from services.gateway.tar_stream import TarStream
from services.gateway.uploads import check_size, in_pieces, store_error
from shared.artifact_store import LocalArtifactStore
from shared.data.arrow import count_rows
from shared.data.ready_folder import (
    STATES_FOLDER,
    WANTED,
    Format,
    Kind,
    arrow_names,
    file_format,
    size_limit,
    states_names,
)
from shared.data.vocabulary_files import NPY_MAGIC
from shared.data.vocabulary_names import vocabulary_names
from shared.errors import UserError
from shared.ids import new_id
from shared.schemas.job import now
from shared.schemas.registry import DatasetFile, DatasetRecord, files_digest
from shared.settings import Settings

TAR_TYPES = frozenset({"application/x-tar", "application/tar", "application/x-gtar", "application/x-compressed-tar"})
MAX_FILES = 500_000
HEAD_BYTES = 16
MAGIC: dict[Format, bytes] = {
    "arrow": b"\xff\xff\xff\xff",  # the continuation marker that every message of an Arrow stream begins with
    "npy": NPY_MAGIC,
    "pt": b"PK\x03\x04",
}
BAD_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\\]")


def is_folder(content_type: str) -> bool:
    """Whether a body of this type is a folder."""
    return content_type.partition(";")[0].strip().lower() in TAR_TYPES


class FolderUpload:
    """A folder on its way in; a `tar_stream.Receiver`."""

    def __init__(self, target: Path, settings: Settings) -> None:
        self.target = target
        self.max_bytes = settings.max_upload_bytes
        self.files: dict[str, DatasetFile] = {}
        self.received = hashlib.sha256()
        self.stream = TarStream(self)
        self._size = 0
        self._top: str | None = None
        self._file: BinaryIO | None = None

    def take(self, piece: bytes) -> None:
        """Check, hash and write a piece of the archive."""
        self.received.update(piece)
        self.stream.feed(piece)

    def finish(self, checksum: Checksum | None) -> tuple[Kind, int]:
        """Check the end; returns what the folder is, and how many rows it has.

        Raises:
            UserError, Problem: it is cut, is not the announced one, or is not a whole folder of a known kind.
        """
        self.stream.finish()
        if checksum is not None:
            checksum.require(self.received.hexdigest())
        return self._recognise()

    def close(self) -> None:
        """Let go of a file that was being written."""
        if self._file is not None:
            self._file.close()

    def count(self, size: int) -> None:
        self._size += size
        check_size(self._size, self.max_bytes)

    def folder(self, name: str) -> None:
        parts = self._parts(name, file=False)
        if parts not in ([], [STATES_FOLDER]):
            _refuse(name, "is a folder that does not belong here")

    def begin(self, name: str, size: int) -> None:
        clean = "/".join(self._parts(name, file=True))
        kind = file_format(clean)
        if kind is None:
            _refuse(name, "does not belong here")
        limit = size_limit(kind)
        if clean in self.files:
            _refuse(name, "is there twice")
        if not size or (limit is not None and size > limit):
            _refuse(name, "is empty" if not size else f"has {size} bytes, at most {limit} are taken")
        if len(self.files) >= MAX_FILES:
            _refuse(name, f"is one file too many: at most {MAX_FILES} are taken")
        path = self.target / "files" / clean
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb")
        self._current, self._head, self._digest = (clean, kind, size), b"", hashlib.sha256()

    def write(self, piece: memoryview) -> None:
        assert self._file is not None
        if len(self._head) < HEAD_BYTES:
            self._head += bytes(piece[: HEAD_BYTES - len(self._head)])
        self._digest.update(piece)
        self._file.write(piece)

    def end(self) -> None:
        assert self._file is not None
        name, kind, size = self._current
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        _check_magic(name, kind, size, self._head)
        self.files[name] = DatasetFile(
            path=f"files/{name}", name=name, format=kind, rows=0, bytes=size, sha256=self._digest.hexdigest()
        )

    def _parts(self, name: str, *, file: bool) -> list[str]:
        """An entry's path below the folder; an archive may hold the folder itself, or what is in it."""
        parts = [part for part in name.removesuffix("/").split("/") if part != "."]
        if any(part in ("", "..") for part in parts) or BAD_CHARACTERS.search(name):
            _refuse(name, "does not stay in the folder")
        if self._top is None:  # the first entry tells
            nested = len(parts) > int(file) and parts[0] != STATES_FOLDER
            self._top = parts[0] if nested else ""
        if not self._top or not parts:
            return parts
        if parts[0] != self._top:
            _refuse(name, f"is not in {self._top}, where the entries before are")
        return parts[1:]

    def _recognise(self) -> tuple[Kind, int]:
        folder = self.target / "files"
        arrow = [name for name, file in self.files.items() if file.format == "arrow"]
        if not arrow:
            vocabulary_names(self.files)
            others = [name for name, file in self.files.items() if file.format not in ("npy", "pt")]
            if others:
                _refuse(others[0], "is of a folder of rows, but there is no data-*.arrow")
            return "vocabulary", 0
        for name in arrow_names(folder, self.files):
            self.files[name].rows = count_rows(folder / name)
        rows = sum(self.files[name].rows for name in arrow)
        states = states_names(self.files)
        if states and max(states) >= rows:
            _refuse(states[max(states)], f"belongs to no row: the folder has {rows}")
        if not rows:
            raise UserError("the folder has no rows", where=arrow[0])
        return "rows", rows


async def receive_folder(
    body: AsyncIterator[bytes], store: LocalArtifactStore, settings: Settings, checksum: Checksum | None, name: str
) -> DatasetRecord:
    """Take a tar stream and make it a dataset; on any error, a cut included, nothing is left of it.

    Raises:
        UserError: an entry, the archive or the folder is not what is taken.
        Problem: too large, or not the announced bytes.
        ArtifactStoreError: it cannot be written.
    """
    staged = await run_in_threadpool(store.staging_file)
    upload = FolderUpload(staged, settings)
    try:
        await run_in_threadpool(staged.mkdir)
        async for piece in in_pieces(body):
            await run_in_threadpool(upload.take, piece)
        kind, rows = await run_in_threadpool(upload.finish, checksum)
        return await run_in_threadpool(_adopt, store, upload, kind, rows, name)
    except OSError as error:
        raise store_error(error) from error
    finally:
        upload.close()
        shutil.rmtree(staged, ignore_errors=True)


def _adopt(store: LocalArtifactStore, upload: FolderUpload, kind: Kind, rows: int, name: str) -> DatasetRecord:
    """Give the folder its key: first the files, then the record that makes them visible."""
    files = [upload.files[name] for name in sorted(upload.files)]
    record = DatasetRecord(
        id=new_id("ds"),
        kind=kind,
        name=name,
        rows=rows,
        bytes=sum(file.bytes for file in files),
        sha256=files_digest(files),
        files=files,
        created_at=now(),
    )
    try:
        store.adopt(f"datasets/{record.id}", upload.target)
        store.create(f"datasets/{record.id}/dataset.json", record.model_dump_json().encode())
    except BaseException:
        store.delete(f"datasets/{record.id}")
        raise
    return record


def _check_magic(name: str, kind: Format, size: int, head: bytes) -> None:
    """Refuse a file that does not begin as its name promises; its content is a stage's business."""
    if not head.startswith(MAGIC.get(kind, b"")):
        _refuse(name, f"is not of the format {kind}")
    if kind == "safetensors":
        header = struct.unpack("<Q", head[:8])[0] if len(head) > 8 else size
        if header + 8 > size or head[8:9] != b"{":
            _refuse(name, "is no safetensors file, or is cut")


def _refuse(name: str, message: str) -> NoReturn:
    raise UserError(f"{name!r} {message}"[:500], hint=WANTED)
