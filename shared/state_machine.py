"""The states of a job, the only ways between them, and what a person may ask for in each.

A terminal state never changes. `retry` of a failed or cancelled job therefore makes another job (`retry_of`,
`retried_as`), which reuses its finished stages and takes over what it left unfinished.
"""

from shared.schemas.job import JobStatus, UserAction

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
STOPPING: dict[JobStatus, JobStatus] = {PAUSING: PAUSED, CANCELLING: CANCELLED}  # asked for, and what it becomes

# By action: the status that a job gets, by the one that it has. Asking twice is fine: the second time changes nothing.
ACTIONS: dict[UserAction, dict[JobStatus, JobStatus]] = {
    UserAction.PAUSE: {Q: PAUSED, R: PAUSING, PAUSING: PAUSING, PAUSED: PAUSED},
    UserAction.RESUME: {PAUSED: Q},
    UserAction.CANCEL: {
        Q: CANCELLED,
        R: CANCELLING,
        PAUSING: CANCELLING,
        PAUSED: CANCELLED,
        CANCELLING: CANCELLING,
        CANCELLED: CANCELLED,
    },
    UserAction.RETRY: {FAILED: FAILED, CANCELLED: CANCELLED},
}
GOES_ON = frozenset({Q, R})  # a job that was resumed, when it is asked to resume again


class IllegalTransition(Exception):
    """A job cannot go from `current` to `wanted`."""

    def __init__(self, current: JobStatus, wanted: JobStatus) -> None:
        super().__init__(f"a job that is {current} cannot become {wanted}")
        self.current, self.wanted = current, wanted


class ActionRefused(Exception):
    """A job that is `current` does not take `action`."""

    def __init__(self, action: UserAction, current: JobStatus) -> None:
        self.action, self.current = action, current
        allowed = [status.value for status in ACTIONS[action]]
        super().__init__(f"the job is {current}; {action} is for jobs that are {', '.join(allowed)}")


def check_transition(current: JobStatus, wanted: JobStatus) -> None:
    """Raise `IllegalTransition` unless `wanted` is `current` itself or follows it in the table."""
    if wanted != current and wanted not in TRANSITIONS[current]:
        raise IllegalTransition(current, wanted)


def after_action(action: UserAction, current: JobStatus, last: UserAction | None) -> JobStatus:
    """The status that a job gets when a person asks for `action`.

    Args:
        last: what a person asked for before.

    Raises:
        ActionRefused: not in this status.
    """
    if action == last == UserAction.RESUME and current in GOES_ON:
        return current
    if current not in ACTIONS[action]:
        raise ActionRefused(action, current)
    return ACTIONS[action][current]
