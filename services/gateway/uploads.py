"""Takes a dataset: streams it to the store's staging folder, hashes and checks it as it passes, then adopts it.

Until everything is checked the file has no key: a bad or cut upload leaves nothing behind.
"""

import errno
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from starlette.concurrency import run_in_threadpool

from services.gateway.checksums import Checksum
from services.gateway.problems import Problem
from services.gateway.row_check import FileCheck, check_for
from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError
from shared.ids import new_id
from shared.schemas.job import now
from shared.schemas.registry import ONLY_SOURCE, DatasetFile, DatasetRecord, files_digest
from shared.settings import Settings

PIECE_BYTES = 1 << 20


class Upload:
    """One file on its way in: the bytes so far, their hash, and what they are."""

    def __init__(self, file: BinaryIO, settings: Settings) -> None:
        self.file = file
        self.settings = settings
        self.check: FileCheck | None = None
        self.digest = hashlib.sha256()
        self.size = 0

    def take(self, piece: bytes) -> None:
        """Check, hash and write a piece."""
        self.size += len(piece)
        check_size(self.size, self.settings.max_upload_bytes)
        self._check(piece).feed(piece)
        self.digest.update(piece)
        self.file.write(piece)

    def finish(self, checksum: Checksum | None) -> None:
        """Check the end, and bring the file to the disk."""
        self.file.flush()
        self._check(b"").finish()
        if checksum is not None:
            checksum.require(self.digest.hexdigest())
        os.fsync(self.file.fileno())

    def entry(self) -> DatasetFile:
        """The file as a dataset's only one."""
        check = self._check(b"")
        ending = check.format + (".gz" if check.compression == "gzip" else "")
        return DatasetFile(
            path=f"files/0.{ending}",
            name=ONLY_SOURCE,
            format=check.format,
            compression=check.compression,
            rows=check.rows,
            bytes=self.size,
            sha256=self.digest.hexdigest(),
        )

    def _check(self, head: bytes) -> FileCheck:
        """The check that fits the file, which its first piece tells."""
        if self.check is None:
            settings = self.settings
            self.check = check_for(head, Path(self.file.name), settings.max_row_bytes, settings.max_upload_bytes)
        return self.check


async def receive_dataset(
    body: AsyncIterator[bytes],
    store: LocalArtifactStore,
    settings: Settings,
    checksum: Checksum | None,
) -> tuple[Path, Upload]:
    """Write a body to a staged file; on any error, a cut included, the file is removed.

    Raises:
        UserError: a line is not a row.
        Problem: too large, or not the announced bytes.
        ArtifactStoreError: it cannot be written.
    """
    staged = await run_in_threadpool(store.staging_file)
    try:
        with staged.open("xb") as file:
            upload = Upload(file, settings)
            async for piece in in_pieces(body):
                await run_in_threadpool(upload.take, piece)
            await run_in_threadpool(upload.finish, checksum)
    except OSError as error:
        _discard(staged)
        raise store_error(error) from error
    except BaseException:
        _discard(staged)
        raise
    return staged, upload


def adopt_dataset(store: LocalArtifactStore, staged: Path, upload: Upload, name: str) -> DatasetRecord:
    """Give a received file its key: first the data, then the record that makes it visible."""
    file = upload.entry()
    record = DatasetRecord(
        id=new_id("ds"),
        name=name,
        rows=file.rows,
        bytes=file.bytes,
        sha256=files_digest([file]),
        files=[file],
        created_at=now(),
    )
    try:
        store.adopt(f"datasets/{record.id}/{file.path}", staged)
        store.create(f"datasets/{record.id}/dataset.json", record.model_dump_json().encode())
    except BaseException:
        _discard(staged)
        store.delete(f"datasets/{record.id}")
        raise
    return record


def check_size(size: int, max_bytes: int) -> None:
    """Refuse more than the service takes.

    Raises:
        Problem: 413.
    """
    if size > max_bytes:
        raise Problem(
            413,
            f"a dataset may have {max_bytes} bytes (EYRIE_MAX_UPLOAD_BYTES); split the file",
        )


async def in_pieces(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join what the network gives to pieces that are worth a thread's time."""
    piece = bytearray()
    async for chunk in body:
        piece += chunk
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def _discard(staged: Path) -> None:
    """Remove it where that is possible: a store that became read-only must not hide the error at hand."""
    with suppress(OSError):
        staged.unlink(missing_ok=True)


def store_error(error: OSError) -> ArtifactStoreError:
    """What to say where an upload cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ArtifactStoreError(
        f"the upload cannot be written: {os.strerror(error.errno or 0)}",
        where="staging",
        hint="free some space, or give the store a larger volume" if full else "the store must be writable",
    )
