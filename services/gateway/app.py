"""Makes the gateway's app: `create_app(settings)`. Any number of replicas can serve the same Redis and store.

With uvicorn alone: `uvicorn --factory services.gateway.app:create_app`.
"""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from starlette.requests import ClientDisconnect

from services.gateway import problems
from services.gateway.access.api_keys import ApiKeys, read_first_key
from services.gateway.access.guard import Guard, describe_security
from services.gateway.access.sessions import Sessions
from services.gateway.api_description.document import complete, operation_id
from services.gateway.deps import Backend
from services.gateway.fleet_verifier import FleetVerifier
from services.gateway.head_requests import HeadRequests
from services.gateway.idempotency import IdempotencyKeys
from services.gateway.inspection.runs import Inspections
from services.gateway.rebuild import Rebuilder
from services.gateway.reconciler import Reconciler
from services.gateway.routers import (
    api_keys,
    artifacts,
    changes,
    checkpoints,
    datasets,
    drafts,
    events,
    fleet,
    health,
    home,
    inspections,
    job_metrics,
    jobs,
    logs,
    metrics,
    plan,
    presets,
    retention,
    rows,
    session,
    webhooks,
)
from services.gateway.streams import Streams
from services.gateway.verifier_probe import VerifierProbe
from services.gateway.webhooks.deliverer import Deliverer
from services.gateway.webhooks.hosts import AllowedHosts
from shared.job_store import JobStore
from shared.queue import JobQueue
from shared.settings import Settings, get_settings
from shared.stores import open_store

ROUTERS = (
    *(home, session, health, metrics, presets, datasets, inspections, plan),
    *(jobs, events, logs, job_metrics, checkpoints, rows, artifacts, drafts, fleet, changes),
    *(retention, api_keys, webhooks),
)
REDIS_TIMEOUT_S = 5


def create_app(settings: Settings | None = None) -> FastAPI:
    """The app with its reconciler and its sender of webhooks, which start and stop with it.

    Raises:
        UserError: the file of the first API key, or the list of the webhooks' hosts, cannot be used.
    """
    settings = settings or get_settings()
    app = FastAPIOffline(
        title="Eyrie",
        summary="Trains speculative-decoding drafts for Kimi-K2.5.",
        version="1",
        lifespan=_lifespan,
        redirect_slashes=False,  # an address that is not there is a 404 as any other
        redoc_url=None,  # ReDoc's script loads its logo from a CDN
        static_url="/docs-assets",
        swagger_ui_parameters={"validatorUrl": None},  # else the page asks swagger.io about our schema
        responses={"default": {"description": "problem+json"}},  # else FastAPI adds a 422 of its own form
        generate_unique_id_function=operation_id,
    )
    app.state.backend = backend = connect(settings)
    app.state.streams = Streams(backend)
    problems.install(app)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    for module in ROUTERS:
        app.include_router(module.router)
    home.mount(app)
    _complete_openapi(app, keys_needed=backend.keys_needed)
    app.add_middleware(
        Guard,
        keys=backend.keys,
        sessions=backend.sessions,
        needed=backend.keys_needed,
        insecure=settings.insecure_no_api_key,
    )
    app.add_middleware(HeadRequests)
    return app


def connect(settings: Settings) -> Backend:
    """Clients of Redis and the store. Nothing is asked of them yet: a gateway starts without Redis, too."""
    store = open_store(settings)
    redis = _redis(settings.redis_url, text=True)
    keys = ApiKeys(store, read_first_key(settings.api_key_file))
    jobs, queue = JobStore(redis, store), JobQueue(settings.redis_url, _redis(settings.redis_url, text=False))
    return Backend(
        settings=settings,
        artifacts=store,
        jobs=jobs,
        queue=queue,
        idempotency=IdempotencyKeys(redis, store),
        rebuilder=Rebuilder(jobs, queue),
        verifier=FleetVerifier(settings.verifier_url),
        probe=VerifierProbe(settings.verifier_url, settings.exchange_root),
        inspections=Inspections(store, redis),
        keys=keys,
        keys_needed=keys.has_any(),
        sessions=Sessions(redis, keys),
        webhook_hosts=AllowedHosts.parse(settings.webhook_hosts),
    )


def _redis(url: str, *, text: bool) -> Redis:
    """A client that gives up soon: people wait for the answer, and ask again."""
    client: Redis = Redis.from_url(
        url,
        decode_responses=text,
        socket_connect_timeout=REDIS_TIMEOUT_S,
        socket_timeout=REDIS_TIMEOUT_S,
        retry=Retry(NoBackoff(), 1),
    )
    return client


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    backend: Backend = app.state.backend
    streams: Streams = app.state.streams
    stop = threading.Event()
    loops = {
        "reconciler": Reconciler(backend.jobs, backend.queue, backend.settings).run,
        "webhooks": Deliverer(backend.jobs, backend.settings, backend.webhook_hosts).run,
    }
    threads = [threading.Thread(target=run, args=(stop,), name=name, daemon=True) for name, run in loops.items()]
    for thread in threads:
        thread.start()
    try:
        async with streams.running():
            yield
    finally:
        backend.inspections.close()
        stop.set()
        for thread in threads:
            thread.join(REDIS_TIMEOUT_S)


async def _on_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it


def _complete_openapi(app: FastAPI, *, keys_needed: bool) -> None:
    """Add what no route's signature says, and how to send a key."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        describe_security(document, needed=keys_needed)
        complete(document)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
