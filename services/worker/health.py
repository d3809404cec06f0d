"""Whether the worker of this host, container or pod lives: `python -m services.worker.health`.

In: the settings of the worker. Exit code 0: Redis has a fresh entry of a worker of this host; 1: it has none, or does
not answer. It is what HEALTHCHECK and probes run; a worker that waits for Redis is unhealthy, and needs no restart.
"""

import socket
import sys

from redis import Redis
from redis.exceptions import RedisError

from shared.errors import UserError
from shared.fleet import Fleet
from shared.settings import get_settings

TIMEOUT_S = 3.0


def main() -> int:
    """Look once."""
    host = socket.gethostname()
    try:
        url = get_settings().redis_url
        with Redis.from_url(url, decode_responses=True, socket_timeout=TIMEOUT_S) as redis:
            workers = [worker for worker in Fleet(redis).workers() if worker.host == host]
    except (RedisError, UserError) as error:
        print(f"unhealthy: {error}")
        return 1
    if not workers:
        print(f"unhealthy: Redis has not heard of a worker on {host} lately")
        return 1
    print(f"healthy: {', '.join(worker.id for worker in workers)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
