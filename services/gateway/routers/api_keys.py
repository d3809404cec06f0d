"""API keys: `POST /v1/api-keys`, `GET /v1/api-keys`, `DELETE /v1/api-keys/{id}`.

Order: newest first, the file's key last. No filters; paging: `limit` and `after`. A key is shown once, when it is made.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Path
from pydantic import BaseModel, Field

from services.gateway.access.api_keys import FILE_KEY, ApiKeyView, NewApiKeyView
from services.gateway.bodies import DocumentRoute
from services.gateway.deps import After, BackendDep, Limit
from services.gateway.paging import page_of
from services.gateway.problems import Problem, not_found
from services.gateway.wire import Page
from shared.schemas.spec import Document, Name

router = APIRouter(prefix="/v1/api-keys", tags=["api keys"], route_class=DocumentRoute)


class ApiKeyRequest(Document):
    """A key to make."""

    name: Name | None = Field(None, description="A name for people: who has it, and what for.", examples=["ci"])


class DeletedApiKey(BaseModel):
    """A key that no longer works."""

    id: str
    object: Literal["api_key"] = "api_key"
    deleted: Literal[True] = True


@router.post("", status_code=201, responses={409: {"description": "The gateway asks for no key"}})
def create_key(
    backend: BackendDep,
    request: Annotated[ApiKeyRequest | None, Body(openapi_examples={"named": {"value": {"name": "ci"}}})] = None,
) -> NewApiKeyView:
    """Make a key. It works at once, at all gateways within seconds. 409 where the gateway asks for none."""
    if not backend.keys_needed:
        raise Problem(
            409,
            "this gateway runs without keys, so that one would keep nobody out: set EYRIE_API_KEY_FILE to a file with "
            "the first key, and start it again",
        )
    return backend.keys.create(request.name if request else None)


@router.get("")
def list_keys(backend: BackendDep, limit: Limit = 50, after: After = None) -> Page[ApiKeyView]:
    """List the keys, without what they are."""
    views = {view.id: view for view in backend.keys.views()}
    ids, has_more = page_of(list(views), after, limit)
    return Page(data=[views[i] for i in ids], has_more=has_more)


@router.delete("/{key_id}", responses={409: {"description": "It is the only key, or that of the file"}})
def delete_key(key_id: Annotated[str, Path(description="Id of a key.")], backend: BackendDep) -> DeletedApiKey:
    """Have a key, and the page's sessions that began with it, work no longer; everywhere within seconds."""
    if key_id == FILE_KEY and backend.keys.has_first:
        raise Problem(
            409, "this key is in the file of EYRIE_API_KEY_FILE: put another one there and restart the gateways"
        )
    if not backend.keys.has_first and [view.id for view in backend.keys.views()] == [key_id]:
        raise Problem(409, "this is the only key: make another one first, else nobody could use the service")
    if not backend.keys.delete(key_id):
        raise not_found("API key", key_id)
    return DeletedApiKey(id=key_id)
