"""Wakes whoever streams something when a job has changed: one connection to Redis for all readers of a gateway.

Nothing is queued for a reader: it learns that there is something to read, and reads from Redis as fast as it can send.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from shared.event_log import CHANGES

log = logging.getLogger(__name__)
BLOCK_MS = 2000
AWAY_S = 1.0
ANY_JOB = ""


class Signal:
    """Something may have changed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the reader."""
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        """Sleep until woken, `timeout_s` at most."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            return
        self._event.clear()


class ChangeFeed:
    """Follows the stream of changes; `run` is its task, which lives as long as the gateway."""

    def __init__(self, redis: "Redis") -> None:
        self.redis = redis
        self._signals: dict[str, set[Signal]] = {}

    @contextmanager
    def watch(self, job_id: str = ANY_JOB) -> Iterator[Signal]:
        """A signal of changes of a job, or of any job, for as long as the block lasts."""
        signal = Signal()
        self._signals.setdefault(job_id, set()).add(signal)
        try:
            yield signal
        finally:
            self._signals[job_id].discard(signal)
            if not self._signals[job_id]:
                del self._signals[job_id]

    async def run(self) -> None:
        """Wake readers until cancelled. While Redis is away they look by themselves now and then."""
        after, away = "$", False
        while True:
            try:
                answer: Any = await self.redis.xread({CHANGES: after}, count=1000, block=BLOCK_MS)
            except (RedisError, OSError) as error:
                if not away:
                    log.warning("streams wait for Redis: %s", error)
                after, away = "$", True
                await asyncio.sleep(AWAY_S)
                continue
            if away:
                away = False
                self._wake(set(self._signals))
            for _, entries in answer or []:
                after = entries[-1][0]
                self._wake({fields["job"] for _, fields in entries} | {ANY_JOB})

    def _wake(self, job_ids: set[str]) -> None:
        for job_id in job_ids & self._signals.keys():
            for signal in self._signals[job_id]:
                signal.set()
