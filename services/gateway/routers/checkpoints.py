"""Checkpoints of a job's training: `/v1/jobs/{id}/checkpoints`.

Order: by step. No filters. Paging: `limit` and `after` (the id of the last entry).
"""

from fastapi import APIRouter

from services.gateway.deps import After, BackendDep, JobDep, Limit
from services.gateway.job_checkpoints import CheckpointView, checkpoints
from services.gateway.job_metrics import metric_points
from services.gateway.paging import page_of
from services.gateway.wire import Page

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get("/{job_id}/checkpoints")
def list_checkpoints(
    record: JobDep, backend: BackendDep, limit: Limit = 50, after: After = None
) -> Page[CheckpointView]:
    """List the steps that the training can go on from, its best and last epoch, and the one that was published."""
    events = backend.jobs.event_log
    points = metric_points(events, backend.artifacts, record)
    views = {view.id: view for view in checkpoints(events, backend.artifacts, record, points)}
    ids, has_more = page_of(list(views), after, limit)
    return Page(data=[views[checkpoint_id] for checkpoint_id in ids], has_more=has_more)
