"""Files that a manifest names: the only ones that can be downloaded.

A path of a request is only ever looked up among the entries of manifests, never joined to a folder; so there is nothing
to traverse.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from services.gateway.downloads import Download, is_unchanged, validators
from services.gateway.problems import Problem, not_found
from services.gateway.wire import FileView
from shared.artifact_store import LocalArtifactStore
from shared.manifests import read_manifest
from shared.schemas.job import DONE_STAGES, JobRecord, Stage
from shared.schemas.manifest import FileEntry
from shared.schemas.registry import DraftRecord

MEDIA_TYPES = {
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".md": "text/markdown; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class StoredFile:
    """A file of a manifest: its key in the store, and what the manifest says of it."""

    key: str
    entry: FileEntry
    stage: Stage


def job_files(store: LocalArtifactStore, record: JobRecord, only: Stage | None = None) -> dict[str, StoredFile]:
    """Files of the job's finished stages, or of one of them, by `STAGE/PATH`."""
    return {
        f"{stage.name}/{file.entry.path}": file
        for stage in record.stages
        if stage.manifest and only in (None, stage.name)
        for file in _manifest_files(store, stage.manifest)
    }


def draft_files(store: LocalArtifactStore, record: DraftRecord) -> dict[str, StoredFile]:
    """Files of a draft, by their path in the draft's folder."""
    folder = f"{record.root}/"
    return {
        file.key.removeprefix(folder): file
        for file in _manifest_files(store, record.manifest)
        if file.key.startswith(folder)
    }


def file_views(files: Mapping[str, StoredFile], base: str) -> list[FileView]:
    """Show files; `base` is the address below which they are downloaded."""
    return [
        FileView(
            path=path,
            size=file.entry.size,
            sha256=file.entry.sha256,
            stage=file.stage,
            url=f"{base}/{quote(path)}",
        )
        for path, file in files.items()
    ]


def require_finished(record: JobRecord, path: str) -> None:
    """Tell apart what a job does not have yet from what it will never have, where a path names a stage of it.

    Raises:
        Problem: 409 while the stage that would have left the file is not finished.
    """
    name = path.partition("/")[0]
    stage = next((stage for stage in record.stages if stage.name == name and stage.status not in DONE_STAGES), None)
    if stage is not None:
        raise Problem(409, f"the stage {stage.name} has no files: it is {stage.status}, and the job is {record.status}")


def send_file(store: LocalArtifactStore, files: Mapping[str, StoredFile], path: str, request: Request) -> Response:
    """A file as a download, whole or by ranges, and under conditions; or where the store has it for a GET.

    Raises:
        Problem: 404 where no manifest names it, or the file itself is gone or leaves the store; 412.
    """
    file = files.get(path)
    if file is None:
        raise not_found("file", path)
    name = PurePosixPath(path)
    url = store.download_url(file.key, name.name)
    place = _place(store, file.key, path) if url is None else None
    headers = validators(file.entry.sha256, request) | {"X-Content-Type-Options": "nosniff"}
    if is_unchanged(file.entry.sha256, request):
        headers.pop("Content-Digest", None)  # nothing is sent
        return Response(status_code=304, headers=headers)
    if url is not None and request.method != "HEAD":
        return RedirectResponse(url, 307)
    media_type = MEDIA_TYPES.get(name.suffix, "application/octet-stream")
    if place is None:  # the address is good for GET alone, and the manifest says what there is to say
        headers |= {"Content-Length": str(file.entry.size), "Accept-Ranges": "bytes"}
        return Response(headers=headers, media_type=media_type)
    return Download(place, headers=headers, media_type=media_type, filename=name.name, stat_result=place.stat())


def _place(store: LocalArtifactStore, key: str, path: str) -> Path:
    try:
        return store.path(key)
    except KeyError:
        raise not_found("file", path) from None


def _manifest_files(store: LocalArtifactStore, key: str) -> list[StoredFile]:
    manifest = read_manifest(store, key)
    if manifest is None:
        return []
    return [StoredFile(f"{manifest.root}/{entry.path}", entry, manifest.stage) for entry in manifest.files]
