"""What streams need: their own asynchronous connections to Redis, and what wakes them. Starts and ends with the app."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

from fastapi import Depends, Request
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from services.gateway.change_feed import BLOCK_MS, ChangeFeed
from services.gateway.deps import Backend
from services.gateway.fleet_events import FleetFollower
from services.gateway.job_events import EventFollower
from services.gateway.job_logs import LogFollower

CONNECTIONS = 16
TIMEOUT_S = 5


class Streams:
    """Streams of one gateway."""

    def __init__(self, backend: Backend) -> None:
        self.redis = _redis(backend.settings.redis_url)
        self.feed = ChangeFeed(_redis(backend.settings.redis_url, wait_s=BLOCK_MS / 1000))
        self.events = EventFollower(self.redis, backend.jobs, self.feed)
        self.fleet = FleetFollower(self.redis, backend.jobs, self.feed)
        self.logs = LogFollower(backend.jobs)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Wake readers while the block lasts."""
        task = asyncio.create_task(self.feed.run(), name="change-feed")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await self.feed.redis.aclose()
            await self.redis.aclose()


def get_streams(request: Request) -> Streams:
    """The streams of the app that the request came to."""
    streams: Streams = request.app.state.streams
    return streams


StreamsDep = Annotated[Streams, Depends(get_streams)]


def _redis(url: str, wait_s: float = 0.0) -> Redis:
    """A client whose readers share a few connections; they wait for one another rather than open more."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=CONNECTIONS,
        timeout=TIMEOUT_S,
        decode_responses=True,
        socket_connect_timeout=TIMEOUT_S,
        socket_timeout=TIMEOUT_S + wait_s,
        retry=Retry(NoBackoff(), 1),
    )
    return Redis.from_pool(pool)
