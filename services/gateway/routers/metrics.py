"""Metrics: `GET /metrics`, in Prometheus' text format. 503 while Redis cannot be asked."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.gateway.deps import BackendDep
from services.gateway.metrics import service_registry

router = APIRouter(tags=["health"])
EXAMPLE = 'eyrie_jobs{status="queued"} 3.0'


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"description": "Figures", "content": {"text/plain": {"schema": {"type": "string"}, "example": EXAMPLE}}}
    },
)
def get_service_metrics(backend: BackendDep) -> Response:
    """Show jobs, queue, stages, verifier and fleet in figures; `docs/observability.md` lists them."""
    return Response(generate_latest(service_registry(backend.jobs, backend.queue)), media_type=CONTENT_TYPE_LATEST)
