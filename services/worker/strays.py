"""What dead runs leave on this machine: processes, and hidden states in the exchange folder.

Their worker was killed, and its guard too, or it froze past its lease.

A run is dead when it no longer holds its job's run lease. A run whose lease lapsed while Redis was away takes it up
again; so nothing is ended that has not been dead for a while, on this process's monotonic clock.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from redis.exceptions import RedisError

from services.worker.data.exchange import sweep_dead_runs
from services.worker.supervision import end_tree, live_runs
from shared.job_store import JobNotFound, JobStore

log = logging.getLogger(__name__)
GRACE_S = 5.0


class Strays:
    """Looks for dead runs, again and again, and ends what is left of them.

    Args:
        lease_s: length of run leases; one is renewed three times in it.
        clock: seconds that only grow.
    """

    def __init__(self, jobs: JobStore, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.jobs, self.patience_s, self._clock = jobs, lease_s / 2 + 1, clock
        self._dead_since: dict[tuple[str, str], float] = {}

    def sweep(self) -> bool:
        """End the runs that have been dead for long enough; tells whether some are dead and not yet for so long.

        Raises:
            RedisError: nothing was ended.
        """
        runs = live_runs(self.jobs.artifacts.root)
        tokens = {job_id: self.jobs.run_token(job_id) for job_id, _ in runs}
        moment, before = self._clock(), self._dead_since
        self._dead_since = {run: before.get(run, moment) for run in runs if tokens[run[0]] != run[1]}
        for run, since in list(self._dead_since.items()):
            if moment - since >= self.patience_s:
                log.warning("ending processes of the run %s of job %s, which is dead", run[1], run[0])
                end_tree(run[1], None, GRACE_S)
                del self._dead_since[run]
        return bool(self._dead_since)


def sweep_states(jobs: JobStore, exchange: Path) -> None:
    """Clear away hidden states of runs that have ended or were killed; later, where that cannot be done now."""

    def owner(job_id: str) -> str | None:
        with contextlib.suppress(JobNotFound):
            return jobs.owner(job_id)
        return None

    try:
        sweep_dead_runs(exchange.absolute(), owner)
    except (RedisError, OSError) as error:
        log.warning("the exchange folder was not swept: %s", error)
