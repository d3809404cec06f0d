"""Drafts: `GET /v1/drafts`, `/v1/drafts/{id}`, their `/lineage`, and their files below `/files`.

Order: drafts newest first, files as the manifest lists them. Paging of drafts: `limit` and `after`. No filters.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from services.gateway.deps import After, BackendDep, Limit
from services.gateway.downloads import DOWNLOADS
from services.gateway.files import draft_files, file_views, send_file
from services.gateway.lineage import LineageView, draft_lineage
from services.gateway.paging import page_of
from services.gateway.problems import not_found
from services.gateway.wire import DraftView, FileView, Page, draft_view
from shared.artifact_store import LocalArtifactStore
from shared.ids import is_id
from shared.schemas.registry import DraftRecord

router = APIRouter(prefix="/v1/drafts", tags=["drafts"])


def find_draft(draft_id: Annotated[str, Path(max_length=64)], backend: BackendDep) -> DraftRecord:
    """The record of the draft in the path."""
    record = _read(backend.artifacts, draft_id) if is_id(draft_id, "draft") else None
    if record is None:
        raise not_found("draft", draft_id)
    return record


DraftDep = Annotated[DraftRecord, Depends(find_draft)]


@router.get("")
def list_drafts(backend: BackendDep, limit: Limit = 50, after: After = None) -> Page[DraftView]:
    """List published drafts, newest first."""
    names = [name.removesuffix(".json") for name in backend.artifacts.list("drafts")]
    ids = sorted((name for name in names if is_id(name, "draft")), reverse=True)
    shown, has_more = page_of(ids, after, limit)
    records = [record for i in shown if (record := _read(backend.artifacts, i))]
    return Page(data=[draft_view(record) for record in records], has_more=has_more)


@router.get("/{draft_id}")
def get_draft(record: DraftDep) -> DraftView:
    """Show a draft with its evaluation."""
    return draft_view(record)


@router.get("/{draft_id}/lineage")
def get_lineage(
    record: DraftDep,
    backend: BackendDep,
    verify: Annotated[
        Literal["sizes", "full"], Query(description="`full` reads every file again and compares its SHA-256.")
    ] = "sizes",
) -> LineageView:
    """Show what a draft was made from: stages, dataset files, verifier, each by hash, and whether it is still that."""
    return draft_lineage(backend.artifacts, record, rehash=verify == "full")


@router.get("/{draft_id}/files")
def list_draft_files(record: DraftDep, backend: BackendDep) -> Page[FileView]:
    """List the files of a draft."""
    files = draft_files(backend.artifacts, record)
    return Page(data=file_views(files, f"/v1/drafts/{record.id}/files"), has_more=False)


@router.head("/{draft_id}/files/{path:path}", include_in_schema=False)
@router.get("/{draft_id}/files/{path:path}", response_class=Response, responses=DOWNLOADS)
def download_draft_file(
    path: Annotated[str, Path(description="As the list has it.", examples=["model.safetensors"])],
    record: DraftDep,
    backend: BackendDep,
    request: Request,
) -> Response:
    """Download a file of a draft. The ETag is its SHA-256; `Range`, `If-Range`, `If-Match` and `If-None-Match` are
    honoured."""
    return send_file(backend.artifacts, draft_files(backend.artifacts, record), path, request)


def _read(store: LocalArtifactStore, draft_id: str) -> DraftRecord | None:
    try:
        return DraftRecord.model_validate_json(store.read(f"drafts/{draft_id}.json"))
    except KeyError:
        return None
