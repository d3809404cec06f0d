"""Health: `GET /healthz` (the process lives) and `GET /readyz` (it can work: Redis and the store are usable)."""

from fastapi import APIRouter
from redis.exceptions import RedisError

from services.gateway.deps import Backend, BackendDep
from services.gateway.problems import Problem
from shared.errors import ArtifactStoreError

router = APIRouter(tags=["health"])
PROBE = "staging/readiness"


@router.get("/healthz")
async def get_health() -> dict[str, str]:
    """Tell that the process lives."""
    return {"status": "ok"}


@router.get("/readyz")
def get_readiness(backend: BackendDep) -> dict[str, str]:
    """Tell whether requests can be served; 503 with reasons where not."""
    reasons = [reason for reason in (_redis(backend), _store(backend)) if reason]
    if reasons:
        errors = [{"pointer": "", "source": "service", "message": reason} for reason in reasons]
        raise Problem(503, "; ".join(reasons), errors=errors, headers={"Retry-After": "2"})
    return {"status": "ready"}


def _redis(backend: Backend) -> str | None:
    try:
        backend.jobs.redis.ping()
    except RedisError:
        return "Redis does not answer"
    return None


def _store(backend: Backend) -> str | None:
    try:
        backend.artifacts.write(PROBE, b"ready")
    except (OSError, ArtifactStoreError):
        return "the artifact store cannot be written"
    return None
