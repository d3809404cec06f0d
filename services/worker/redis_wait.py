"""Waits for a Redis that is away, so that nothing that was computed is lost for that."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import RedisError

log = logging.getLogger(__name__)
REDIS_RETRY_S = 1.0

T = TypeVar("T")


class GaveUp(Exception):
    """Redis stays away, and this worker may wait no longer."""


def insist(action: Callable[[], T], job_id: str, stopping: threading.Event, grace_s: float) -> T:
    """Do it, again and again while Redis does not answer.

    Raises:
        GaveUp: the worker is told to stop, and Redis has stayed away for `grace_s` since.
    """
    stopping_since: float | None = None
    while True:
        try:
            return action()
        except RedisError as error:
            log.warning("job %s: Redis does not answer, waiting: %s", job_id, error)
            if stopping.is_set():
                stopping_since = stopping_since or time.monotonic()
                if time.monotonic() - stopping_since > grace_s:
                    raise GaveUp(str(error)) from error
            time.sleep(REDIS_RETRY_S)
