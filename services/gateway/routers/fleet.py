"""The fleet: `/v1/workers`, `/v1/gpus`, `/v1/verifiers`, and one of each by id.

Order: workers by host, GPUs by id; the fleet's own verifier first, then managed ones, oldest first. Paging: `limit` and
`after`. No filters.
"""

from collections.abc import Sequence
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path

from services.gateway.deps import After, BackendDep, Limit
from services.gateway.fleet import GpuView, VerifierView, WorkerView, gpu_views, verifier_views, worker_views
from services.gateway.paging import page_of
from services.gateway.problems import not_found
from services.gateway.wire import Page

router = APIRouter(prefix="/v1", tags=["fleet"])
FleetId = Annotated[str, Path(description="Id as the list shows it.")]

View = TypeVar("View", WorkerView, GpuView, VerifierView)


@router.get("/workers")
def list_workers(backend: BackendDep, limit: Limit = 50, after: After = None) -> Page[WorkerView]:
    """List the workers that live, and what each does. One that was killed disappears within a minute."""
    return _page(worker_views(backend.jobs), after, limit)


@router.get("/workers/{worker_id}")
def get_worker(worker_id: FleetId, backend: BackendDep) -> WorkerView:
    """Show a live worker."""
    return _find("worker", worker_views(backend.jobs), worker_id)


@router.get("/gpus")
def list_gpus(backend: BackendDep, limit: Limit = 50, after: After = None) -> Page[GpuView]:
    """List the GPUs that live workers see, and who has them. `quarantined`: a dead run had it and may still use it."""
    return _page(gpu_views(backend.jobs), after, limit)


@router.get("/gpus/{gpu_id}")
def get_gpu(gpu_id: FleetId, backend: BackendDep) -> GpuView:
    """Show a GPU."""
    return _find("GPU", gpu_views(backend.jobs), gpu_id)


@router.get("/verifiers")
def list_verifiers(backend: BackendDep, limit: Limit = 50, after: After = None) -> Page[VerifierView]:
    """List the fleet's own verifier and those that workers run now: what they serve, and how far they have loaded."""
    return _page(verifier_views(backend.jobs, backend.probe.state()), after, limit)


@router.get("/verifiers/{verifier_id}")
def get_verifier(verifier_id: FleetId, backend: BackendDep) -> VerifierView:
    """Show a verifier; the fleet's own is `external`."""
    return _find("verifier", verifier_views(backend.jobs, backend.probe.state()), verifier_id)


def _page(views: Sequence[View], after: str | None, limit: int) -> Page[View]:
    shown, has_more = page_of([view.id for view in views], after, limit)
    first = next((place for place, view in enumerate(views) if shown and view.id == shown[0]), 0)
    return Page(data=list(views[first : first + len(shown)]), has_more=has_more)


def _find(what: str, views: Sequence[View], wanted: str) -> View:
    for view in views:
        if view.id == wanted:
            return view
    raise not_found(what, wanted)
