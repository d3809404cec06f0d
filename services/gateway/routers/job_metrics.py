"""Metrics of a job's training: `/v1/jobs/{id}/metrics`.

Order: by stage and step. Filters: `stage`, `name`. Paging: `limit` and `after`, the id of the last point seen;
`max_points` thins a long curve out.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from services.gateway.deps import After, BackendDep, JobDep
from services.gateway.job_metrics import MetricView, metric_page, metric_points
from services.gateway.wire import Page
from shared.schemas.job import Stage

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
Names = Annotated[list[str] | None, Query(description="Only these figures, such as `loss`.", max_length=64)]


@router.get("/{job_id}/metrics")
def list_metrics(
    record: JobDep,
    backend: BackendDep,
    stage: Annotated[Stage | None, Query(description="Only figures of this stage.")] = None,
    name: Names = None,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Points on one page.")] = 1000,
    max_points: Annotated[int | None, Query(ge=2, le=10_000, description="Thin the curves out to so many.")] = None,
) -> Page[MetricView]:
    """List what training measured at each optimizer step, and at each validation (names begin with `val_`).

    Steps grow: where a training went on from an earlier step, the points that it replaced are left out. Who follows a
    job and is given a smaller step than it has drops its own from there on.
    """
    points = metric_points(backend.jobs.event_log, backend.artifacts, record)
    chosen = [point for point in points if stage in (None, point.stage)]
    views, has_more = metric_page(chosen, after, limit, name or (), max_points)
    return Page(data=views, has_more=has_more)
