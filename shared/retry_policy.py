"""Which ends of an attempt are tried again without being asked, how often, and after how long.

| reason | again | why |
| --- | --- | --- |
| `worker_lost` | `max_attempts` attempts in all | the job is not to blame; the lease's time has passed already |
| `oom_host` | once | a neighbour may have had the memory; a job that needs too much runs out again |
| `upstream_verifier` | twice, after 1 and 4 times `retry_wait_s` | a verifier restarts; its rows are kept |
| `internal` | once | a driver or a library may have hiccuped; a defect comes again |
| `artifact_store` | never | a full disk does not empty itself, and every try would write more |
| `oom_gpu` | never | equal shapes on equal GPUs run out again |
| `diverged`, `timeout`, `user_error`, `capacity` | never | the document has to change |
| `stopped_by_user` | never | a person has decided |

A worker that hands its job over when it is told to stop is no failure and counts nowhere.
"""

from dataclasses import dataclass

from shared.errors import StatusReason
from shared.settings import Settings

BACKOFF_FACTOR = 4


@dataclass(frozen=True)
class Retry:
    """How often (None: as `Settings.max_attempts` says), and the first wait in units of `Settings.retry_wait_s`."""

    times: int | None
    wait: float = 0.0


NEVER = Retry(0)
RETRIES: dict[StatusReason, Retry] = {
    **dict.fromkeys(StatusReason, NEVER),
    StatusReason.WORKER_LOST: Retry(None),
    StatusReason.OOM_HOST: Retry(1, wait=1),
    StatusReason.UPSTREAM_VERIFIER: Retry(2, wait=1),
    StatusReason.INTERNAL: Retry(1, wait=1),
}


def most_retries(reason: StatusReason, settings: Settings) -> int:
    """How often an attempt that ended for `reason` is followed by another one."""
    times = RETRIES[reason].times
    return settings.max_attempts - 1 if times is None else times


def wait_s(reason: StatusReason, retries: int, settings: Settings) -> float:
    """Seconds before the next attempt, after `retries` earlier ones for the same reason."""
    return RETRIES[reason].wait * settings.retry_wait_s * float(BACKOFF_FACTOR**retries)
