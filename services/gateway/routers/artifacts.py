"""Artifacts of a job: `GET /v1/jobs/{id}/artifacts` and downloads below it.

Order: by stage, then as the stage's manifest lists them. Filter: `stage`. No paging: manifests are read whole. A path
is `STAGE/PATH`, and only what a manifest names exists.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from services.gateway.deps import BackendDep, JobDep
from services.gateway.downloads import DOWNLOADS
from services.gateway.files import file_views, job_files, require_finished, send_file
from services.gateway.wire import FileView, Page
from shared.schemas.job import Stage

router = APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"])


@router.get("")
def list_artifacts(
    record: JobDep,
    backend: BackendDep,
    stage: Annotated[Stage | None, Query(description="Only files of this stage.")] = None,
) -> Page[FileView]:
    """List the files of the job's finished stages."""
    files = job_files(backend.artifacts, record, stage)
    return Page(data=file_views(files, f"/v1/jobs/{record.id}/artifacts"), has_more=False)


@router.head("/{path:path}", include_in_schema=False)
@router.get(
    "/{path:path}",
    response_class=Response,
    responses={**DOWNLOADS, 409: {"description": "The stage has not finished"}},
)
def download_artifact(
    path: Annotated[str, Path(description="`STAGE/PATH`, as the list has it.", examples=["train/draft/config.json"])],
    record: JobDep,
    backend: BackendDep,
    request: Request,
) -> Response:
    """Download a file of a finished stage. The ETag is its SHA-256; `Range`, `If-Range`, `If-Match` and `If-None-Match`
    are honoured."""
    require_finished(record, path)
    return send_file(backend.artifacts, job_files(backend.artifacts, record), path, request)
