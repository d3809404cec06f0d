"""Datasets: `POST /v1/datasets`, `GET /v1/datasets`, `GET` and `DELETE /v1/datasets/{id}`.

Order: newest first. Filter: `sha256`. Paging: `limit` and `after` (the id of the last entry). A dataset never changes.
"""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from services.gateway.bodies import drain, read_json_object
from services.gateway.checksums import Checksum, announced_checksum
from services.gateway.compose import JSONL_HINT, compose_dataset, read_composition
from services.gateway.dataset_removal import remove_dataset
from services.gateway.deps import After, Backend, BackendDep, Limit
from services.gateway.examples import DATASET_BODY
from services.gateway.folder_uploads import is_folder, receive_folder
from services.gateway.multipart import FilePart, file_stream
from services.gateway.paging import page_of
from services.gateway.problems import Problem, not_found
from services.gateway.uploads import adopt_dataset, check_size, receive_dataset
from services.gateway.wire import DatasetView, DeletedView, Page
from shared.artifact_store import LocalArtifactStore
from shared.dataset_kinds import read_dataset
from shared.errors import UserError
from shared.ids import is_id
from shared.schemas.registry import DatasetRecord
from shared.schemas.spec import Name

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])
LOCATION = {"Location": {"description": "Where the dataset is.", "schema": {"type": "string"}}}
NAME = TypeAdapter(Name)
SHA256 = r"^[0-9a-fA-F]{64}$"


@router.post(
    "",
    status_code=201,
    responses={201: {"description": "The new dataset", "headers": LOCATION}},
    openapi_extra={"requestBody": DATASET_BODY},
)
async def upload_dataset(
    request: Request,
    response: Response,
    backend: BackendDep,
    name: Annotated[Name | None, Query(description="A name for people.")] = None,
    content_sha256: Annotated[
        str | None,
        Header(alias="X-Content-SHA256", pattern=SHA256, description="Of the file, in hexadecimal."),
    ] = None,
    content_digest: Annotated[
        str | None, Header(max_length=1024, description="Of the body: `sha-256=:BASE64:` (RFC 9530).")
    ] = None,
    sha256: Annotated[str | None, Query(pattern=SHA256, description="Of the file, in hexadecimal.")] = None,
) -> DatasetView:
    """Upload prompts, conversations or token ids: JSONL, plain or gzip, or Parquet; or compose uploaded datasets.

    The body is the file itself (`curl --data-binary @prompts.jsonl`), or a form with a part `file`. What it is, its
    first bytes tell. Each line is checked as it arrives; a bad file is refused with the number of its first bad line,
    and nothing is kept; so is one whose checksum is not the announced one. A body of type `application/json` composes a
    dataset of uploaded ones, by weight.

    A tar archive (`application/x-tar`, gzipped or not) is a folder: ready-made rows in speculators' own layout, or
    the files of a vocabulary.
    """
    content_type = request.headers.get("content-type", "").lower()
    if content_type.partition(";")[0].strip() == "application/json":
        record = await _compose(request, backend, name)
        return _created(record, response)
    if content_digest is not None and content_type.startswith("multipart/"):
        message = "is that of the whole form; give the file's own as ?sha256="
        field = {"source": "header", "pointer": "/Content-Digest", "message": message}
        raise Problem(422, f"Content-Digest {message}", errors=[field])
    checksum = announced_checksum(content_digest, content_sha256, sha256)
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit():
        check_size(int(announced), backend.settings.max_upload_bytes)
    body = request.stream()
    if is_folder(content_type):
        return _created(await _take_folder(body, backend, checksum, name or "folder"), response)
    form = FilePart(request.headers["content-type"]) if content_type.startswith("multipart/") else None
    source = file_stream(form, body) if form else body
    try:
        staged, upload = await receive_dataset(source, backend.artifacts, backend.settings, checksum)
    except (Problem, UserError):
        await drain(_rest(body))
        raise
    title = name or _title(form)
    record = await run_in_threadpool(adopt_dataset, backend.artifacts, staged, upload, title)
    return _created(record, response)


@router.get("")
def list_datasets(
    backend: BackendDep,
    limit: Limit = 50,
    after: After = None,
    sha256: Annotated[str | None, Query(pattern=SHA256, description="Only those with this `sha256`.")] = None,
) -> Page[DatasetView]:
    """List datasets, newest first."""
    names = [name for name in backend.artifacts.list("datasets") if is_id(name, "ds")]
    if sha256 is not None:
        found = ((name, _read(backend.artifacts, name)) for name in names)
        names = [name for name, record in found if record and record.sha256 == sha256.lower()]
    ids, has_more = page_of(sorted(names, reverse=True), after, limit)
    records = [record for i in ids if (record := _read(backend.artifacts, i))]
    return Page(data=records, has_more=has_more)


@router.get("/{dataset_id}")
def get_dataset(dataset_id: Annotated[str, Path()], backend: BackendDep) -> DatasetView:
    """Show a dataset."""
    record = _read(backend.artifacts, dataset_id) if is_id(dataset_id, "ds") else None
    if record is None:
        raise not_found("dataset", dataset_id)
    return record


@router.delete("/{dataset_id}", responses={409: {"description": "A job, a draft or another dataset refers to it"}})
def delete_dataset(dataset_id: Annotated[str, Path()], backend: BackendDep) -> DeletedView:
    """Delete a dataset. 409, with who refers to it, while a job, a draft or a composed dataset does."""
    try:
        remove_dataset(backend, get_dataset(dataset_id, backend))
    except KeyError:
        raise not_found("dataset", dataset_id) from None
    return DeletedView(id=dataset_id, object="dataset")


async def _compose(request: Request, backend: BackendDep, name: str | None) -> DatasetRecord:
    try:
        document = await read_json_object(request, "a composition of datasets")
    except Problem as problem:
        raise Problem(problem.status, f"{problem.detail}; {JSONL_HINT}") from None
    composition = read_composition({**document, **({"name": name} if name else {})})
    return await run_in_threadpool(compose_dataset, backend.artifacts, composition)


def _created(record: DatasetRecord, response: Response) -> DatasetView:
    response.headers["Location"] = f"/v1/datasets/{record.id}"
    return DatasetView(**record.model_dump())


async def _take_folder(
    body: AsyncIterator[bytes], backend: Backend, checksum: Checksum | None, name: str
) -> DatasetRecord:
    try:
        return await receive_folder(body, backend.artifacts, backend.settings, checksum, name)
    except (Problem, UserError):
        await drain(_rest(body))
        raise


def _read(store: LocalArtifactStore, dataset_id: str) -> DatasetView | None:
    record = read_dataset(store, dataset_id)
    return None if record is None else DatasetView(**record.model_dump())


def _title(form: FilePart | None) -> str:
    """The form's file name where it makes a proper name."""
    try:
        return NAME.validate_python(form.filename if form else None)
    except ValueError:
        return "dataset"


async def _rest(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What is left of a body; nothing when it was read to its end."""
    try:
        async for piece in body:
            yield piece
    except RuntimeError:
        return
