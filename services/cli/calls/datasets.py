"""Calls on datasets: upload, compose, list, show, inspect, delete."""

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from services.cli.calls.base import PAGE, TIMEOUT_S, Calls, JsonObject, address
from services.cli.folder_archive import FolderArchive

INSPECTION_WAIT_S = 2.0  # an answer so often is progress to show
NAME_CHARACTERS = 128
MOST_EQUAL = 10_000


class DatasetCalls(Calls):
    """`/v1/datasets`."""

    def upload_dataset(self, path: Path, name: str | None = None) -> JsonObject:
        """Upload a file of prompts, conversations or token ids (JSONL, plain or gzip, or Parquet), or a folder.

        Its checksum goes with it, so that nothing is stored of an upload that was damaged on its way.

        Raises:
            ApiError
            OSError: the file cannot be read.
        """
        if path.is_dir():
            return self.upload_folder(path, name)
        with path.open("rb") as file:
            return self._object(
                "POST",
                "/v1/datasets",
                params={"name": name or _as_name(path)},
                content=_pieces(file),
                headers=_headers("application/octet-stream", path.stat().st_size, _sha256(path)),
                timeout=httpx.Timeout(TIMEOUT_S, read=600),
            )

    def upload_folder(self, folder: Path, name: str | None = None) -> JsonObject:
        """Upload a folder of ready-made rows, or of a vocabulary.

        Raises:
            ApiError
            OSError: a file cannot be read.
        """
        archive = FolderArchive(folder)
        digest = hashlib.sha256()
        for piece in archive:
            digest.update(piece)
        return self._object(
            "POST",
            "/v1/datasets",
            params={"name": name or _as_name(folder.resolve())},
            content=iter(archive),
            headers=_headers("application/x-tar", archive.size, digest.digest()),
            timeout=httpx.Timeout(TIMEOUT_S, read=600),
        )

    def compose_dataset(self, sources: list[JsonObject], name: str | None = None) -> JsonObject:
        """Make a dataset of uploaded ones: each with `dataset`, and perhaps `name` and `weight`."""
        document = {"sources": sources} | ({"name": name} if name else {})
        return self._object("POST", "/v1/datasets", json=document)

    def find_dataset(self, path: Path) -> JsonObject | None:
        """The first dataset that was made of a file with these bytes, if there is one.

        Raises:
            ApiError
            OSError: the file cannot be read.
        """
        found = self._list("/v1/datasets", MOST_EQUAL, {"sha256": _sha256(path).hex()})
        return found[-1] if found else None

    def list_datasets(self, limit: int = PAGE) -> list[JsonObject]:
        """The newest `limit` datasets."""
        return self._list("/v1/datasets", limit)

    def get_dataset(self, dataset_id: str) -> JsonObject:
        """One dataset."""
        return self._get(address("datasets", dataset_id))

    def delete_dataset(self, dataset_id: str) -> JsonObject:
        """Remove a dataset that nothing refers to."""
        return self._delete(address("datasets", dataset_id))

    def inspect_dataset(self, dataset_id: str, body: JsonObject, wait_s: float = INSPECTION_WAIT_S) -> JsonObject:
        """What a job would make of a dataset: finished, or, after `wait_s`, running; ask again with the same body."""
        path = address("datasets", dataset_id, "inspect")
        return self._object("POST", path, json=body, params={"wait_s": wait_s}, repeat=True)


def _headers(kind: str, size: int, digest: bytes) -> dict[str, str]:
    """What an upload is, with the checksum that the gateway compares with what has arrived (RFC 9530)."""
    checksum = f"sha-256=:{base64.b64encode(digest).decode()}:"
    return {"Content-Type": kind, "Content-Length": str(size), "Content-Digest": checksum}


def _as_name(path: Path) -> str:
    """A file's name with what names may not have replaced."""
    clean = re.sub(r"[^\w .:@+/-]", "-", path.name)
    return re.sub(r"^\W+", "", clean)[:NAME_CHARACTERS] or "dataset"


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _pieces(file: Any) -> Iterator[bytes]:
    while piece := file.read(1 << 18):
        yield piece
