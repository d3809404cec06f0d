"""Drafts: `/v1/drafts`, one of them by id or tag, its tags, comparison, deletion, `/lineage`, and files below `/files`.

Order: drafts newest first, files as the manifest lists them. Filters of the list: `verifier`, `gate`, `tag`, `job`.
Paging of drafts: `limit` and `after`.
"""

from itertools import islice
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from services.gateway.bodies import DocumentRoute
from services.gateway.deps import After, BackendDep, Limit
from services.gateway.downloads import DOWNLOADS
from services.gateway.files import draft_files, file_views, send_file
from services.gateway.job_listing import require_complete
from services.gateway.lineage import LineageView, draft_lineage
from services.gateway.paging import page_of
from services.gateway.problems import Problem
from services.gateway.registry.comparison import DraftComparison, compare
from services.gateway.registry.documents import read_origin
from services.gateway.registry.drafts import DraftRegistry
from services.gateway.registry.tags import TAG_PATTERN
from services.gateway.registry.uses import require_unused
from services.gateway.wire import DeletedView, DraftView, FileView, Page, draft_view
from shared.schemas.registry import DraftRecord

router = APIRouter(prefix="/v1/drafts", tags=["drafts"], route_class=DocumentRoute)
DraftName = Annotated[str, Path(description="Id of a draft, or one of its tags.")]


def get_registry(backend: BackendDep) -> DraftRegistry:
    """The drafts of this gateway's store."""
    return DraftRegistry(backend.artifacts)


RegistryDep = Annotated[DraftRegistry, Depends(get_registry)]


def find_draft(draft_id: DraftName, registry: RegistryDep) -> DraftRecord:
    """The record of the draft in the path."""
    return registry.find(draft_id)


DraftDep = Annotated[DraftRecord, Depends(find_draft)]
TagName = Annotated[
    str,
    Path(
        pattern=TAG_PATTERN,
        description="Letters in lower case, digits, `.`, `_`, `-`; no id of a draft, and not `compare`.",
        examples=["production"],
    ),
]


@router.get("")
def list_drafts(
    registry: RegistryDep,
    limit: Limit = 50,
    after: After = None,
    verifier: Annotated[str | None, Query(max_length=512, description="Only drafts of this verifier.")] = None,
    gate: Annotated[Literal["passed", "failed", "none"] | None, Query(description="Only with this result.")] = None,
    tag: Annotated[str | None, Query(max_length=64, description="Only the draft with this tag.")] = None,
    job: Annotated[str | None, Query(max_length=64, description="Only drafts that this job made.")] = None,
) -> Page[DraftView]:
    """List published drafts, newest first."""
    records, tags = registry.all(), registry.tags.by_draft()
    rest, _ = page_of([record.id for record in records], after, len(records))
    wanted = {"verifier": verifier, "gate": gate, "job_id": job}
    matching = (
        record
        for record in records[len(records) - len(rest) :]
        if all(value in (None, getattr(record, name)) for name, value in wanted.items())
        and (tag is None or tag in tags.get(record.id, []))
    )
    shown = list(islice(matching, limit + 1))
    views = [draft_view(record, tags.get(record.id, [])) for record in shown[:limit]]
    return Page(data=views, has_more=len(shown) > limit)


@router.get("/compare", responses={404: {"description": "There is no such draft"}})
def compare_drafts(
    backend: BackendDep,
    registry: RegistryDep,
    draft: Annotated[
        list[Annotated[str, Query(max_length=64)]],
        Query(min_length=2, max_length=8, description="Ids or tags, from two to eight.", examples=[["production"]]),
    ],
) -> DraftComparison:
    """Put drafts side by side: acceptance by suite and position, before and after training, and what they differ in.

    Drafts with other suites or another number of speculative tokens are compared on what they share; `notes` says what
    was left out or measured in another way.
    """
    records = [registry.find(name, "query", "/draft") for name in draft]
    ids = [record.id for record in records]
    if len(set(ids)) < len(ids):
        detail = f"each draft can be named once; these are {', '.join(ids)}"
        raise Problem(422, detail, errors=[{"source": "query", "pointer": "/draft", "message": detail}])
    tags = registry.tags.by_draft()
    views = [draft_view(record, tags.get(record.id, [])) for record in records]
    return compare(views, {record.id: read_origin(backend.jobs, record) for record in records})


@router.get("/{draft_id}")
def get_draft(record: DraftDep, registry: RegistryDep) -> DraftView:
    """Show a draft with its evaluation and its tags; a tag stands for the draft that has it."""
    return _view(record, registry)


@router.delete("/{draft_id}", responses={409: {"description": "Something still needs the draft"}})
def delete_draft(record: DraftDep, backend: BackendDep, registry: RegistryDep) -> DeletedView:
    """Delete a draft. Its files go with the next clean-up after the retention time, unless a job still has them.

    409 while it has a tag, while a job that has not ended compares its own draft with it, and while a job that makes it
    has not ended.
    """
    require_complete(backend.rebuilder)
    registry.delete(record, lambda: require_unused(backend.jobs, record))
    return DeletedView(id=record.id, object="draft")


@router.put("/{draft_id}/tags/{tag}", responses={409: {"description": "It missed its gate, or is being deleted"}})
def put_tag(record: DraftDep, tag: TagName, registry: RegistryDep) -> DraftView:
    """Put a tag on a draft; it moves from the draft that had it. 409 for a draft that missed its gate."""
    _require_tag(tag)
    registry.promote(record, tag)
    return _view(record, registry)


@router.delete("/{draft_id}/tags/{tag}", responses={409: {"description": "Others move the tag at this moment"}})
def delete_tag(record: DraftDep, tag: TagName, registry: RegistryDep) -> DraftView:
    """Take a tag off a draft. 404 where the draft does not have it."""
    _require_tag(tag)
    if not registry.tags.take_off(tag, record.id):
        detail = f"the draft {record.id} has no tag {tag!r}"
        raise Problem(404, detail, errors=[{"source": "path", "pointer": "/tag", "message": detail}])
    return _view(record, registry)


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


def _require_tag(tag: str) -> None:
    """Keep tags apart from what else stands in their place in an address."""
    if tag == "compare" or tag.startswith("draft_"):
        detail = f"{tag!r} cannot be a tag: ids of drafts begin with draft_, and /v1/drafts/compare compares drafts"
        raise Problem(422, detail, errors=[{"source": "path", "pointer": "/tag", "message": detail}])


def _view(record: DraftRecord, registry: DraftRegistry) -> DraftView:
    return draft_view(record, registry.tags.by_draft().get(record.id, []))
