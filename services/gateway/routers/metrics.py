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
    """Show jobs by status, and what became of the items that stages took in."""
    return Response(generate_latest(service_registry(backend.jobs)), media_type=CONTENT_TYPE_LATEST)
