"""The states of a job and the only ways between them."""

from shared.schemas.job import JobStatus

Q, R = JobStatus.QUEUED, JobStatus.RUNNING
PAUSING, PAUSED = JobStatus.PAUSING, JobStatus.PAUSED
CANCELLING, CANCELLED = JobStatus.CANCELLING, JobStatus.CANCELLED
SUCCEEDED, FAILED = JobStatus.SUCCEEDED, JobStatus.FAILED

TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    Q: frozenset({R, PAUSED, CANCELLED, FAILED}),
    R: frozenset({SUCCEEDED, FAILED, PAUSING, CANCELLING}),
    PAUSING: frozenset({PAUSED, CANCELLING, SUCCEEDED, FAILED}),
    PAUSED: frozenset({Q, CANCELLED}),
    CANCELLING: frozenset({CANCELLED}),
    CANCELLED: frozenset(),
    SUCCEEDED: frozenset(),
    FAILED: frozenset(),
}
TERMINAL = frozenset(status for status, following in TRANSITIONS.items() if not following)
ACTIVE = frozenset(TRANSITIONS) - TERMINAL


class IllegalTransition(Exception):
    """A job cannot go from `current` to `wanted`."""

    def __init__(self, current: JobStatus, wanted: JobStatus) -> None:
        super().__init__(f"a job that is {current} cannot become {wanted}")
        self.current, self.wanted = current, wanted


def check_transition(current: JobStatus, wanted: JobStatus) -> None:
    """Raise `IllegalTransition` unless `wanted` is `current` itself or follows it in the table."""
    if wanted != current and wanted not in TRANSITIONS[current]:
        raise IllegalTransition(current, wanted)
