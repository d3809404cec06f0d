"""What a record becomes when an attempt at its job begins and when it ends, by whoever notices.

The worker that runs an attempt ends it in one of these ways; the reconciler does so for a worker that fell silent. All
functions alter the record in place: they are meant for `JobStore.update`.
"""

from typing import Literal

from shared.errors import StatusReason
from shared.retry_policy import most_retries, wait_s
from shared.schemas.job import (
    AttemptRecord,
    ErrorDetail,
    JobRecord,
    JobStatus,
    StageRecord,
    StageStatus,
    UserAction,
    now,
)
from shared.settings import Settings
from shared.state_machine import GOES_ON, STOPPING, after_action

ATTEMPTS_KEPT = 50
LOST_HINT = "look at the workers' logs: they may lack memory, or be stopped by their host"


class NotThisAttempt(Exception):
    """The attempt that a message stands for has been taken, or is over."""


def begin(record: JobRecord, attempt: int, token: str, worker: str) -> None:
    """Give the job to the worker that has the message of `attempt`.

    Raises:
        NotThisAttempt: another worker has taken it, or it must not run; the record is as it was.
    """
    if record.token == token:
        return  # Redis went away after it had been written
    _require_waiting(record, attempt)
    record.status = JobStatus.RUNNING
    record.token, record.worker = token, worker
    record.status_reason, record.status_message, record.retry_after_s = None, "", None
    started = AttemptRecord(number=attempt, worker=worker, started_at=now())
    record.attempts = [*record.attempts, started][-ATTEMPTS_KEPT:]


def leave_in_line(record: JobRecord, attempt: int, message: str, wait_s: float) -> None:
    """A worker that cannot run the job, while another one can, leaves it for that one: no attempt is used up.

    Raises:
        NotThisAttempt: another worker has taken it, or it must not run; the record is as it was.
    """
    _require_waiting(record, attempt)
    record.status_reason, record.status_message, record.retry_after_s = StatusReason.CAPACITY, message, wait_s


def succeed(record: JobRecord) -> None:
    """The attempt has finished the last stage; a cancel that came before holds, a pause came too late."""
    if record.status == JobStatus.CANCELLING:
        settle(record)
        return
    record.status = JobStatus.SUCCEEDED
    record.status_reason, record.status_message = None, ""
    _end(record, None, "", StageStatus.FAILED)


def settle(record: JobRecord) -> None:
    """Bring a record that somebody is stopping to where it was to go. Others are left alone."""
    if record.status not in STOPPING:
        return
    record.status = STOPPING[record.status]
    cancelled = record.status == JobStatus.CANCELLED
    record.status_reason, record.retry_after_s = StatusReason.STOPPED_BY_USER, None
    _end(record, StatusReason.STOPPED_BY_USER, "", StageStatus.CANCELLED if cancelled else StageStatus.PENDING)


def hand_over(record: JobRecord) -> None:
    """The worker was told to stop, and saved what it had: another one goes on. This counts as no failure."""
    _hand_over(record, StatusReason.WORKER_LOST, "the worker was stopped; another one goes on")


def give_back(record: JobRecord, message: str) -> None:
    """A guest of a run that had its verifier loaded goes back into line, with what was made of its data."""
    _hand_over(record, StatusReason.CAPACITY, message)


def lose(record: JobRecord, settings: Settings) -> None:
    """The worker is gone without a word: what it was asked for is done, another attempt follows, or the job fails."""
    if record.status in STOPPING:
        settle(record)
        return
    message = f"attempt {record.attempt} lost its worker"
    fail(record, ErrorDetail(reason=StatusReason.WORKER_LOST, message=message, hint=LOST_HINT), settings)


def fail(record: JobRecord, detail: ErrorDetail, settings: Settings) -> None:
    """The attempt ended with an error: another one follows where `shared.retry_policy` allows, else the job fails.

    `record.retry_after_s` says how long to wait, and is None where the next attempt can be put in line at once.
    """
    if record.status in STOPPING and (record.status == JobStatus.CANCELLING or _may_retry(record, detail, settings)):
        settle(record)
        return
    if not _may_retry(record, detail, settings):
        record.status, record.status_reason = JobStatus.FAILED, detail.reason
        tried = record.retries.get(detail.reason, 0)
        again = f" (and so did {tried} earlier attempt{'s' if tried > 1 else ''})" if tried else ""
        record.status_message, record.error = f"{detail.message}{again}", detail
        _end(record, detail.reason, detail.message, StageStatus.FAILED)
        return
    tried = record.retries.get(detail.reason, 0)
    wait = wait_s(detail.reason, tried, settings)
    most = most_retries(detail.reason, settings)
    when = f"in {wait:g} s" if wait else "now"
    record.status_reason = detail.reason
    record.status_message = f"{detail.message}; trying again {when} (retry {tried + 1} of {most})"
    record.retries = record.retries | {detail.reason: tried + 1}
    record.retry_after_s = wait or None
    _end(record, detail.reason, detail.message, StageStatus.PENDING)
    record.attempt += 1


def decide(record: JobRecord, action: UserAction) -> None:
    """Do what a person asks for; a job that no worker has stops at once.

    Raises:
        ActionRefused: not in the job's status.
    """
    record.status = after_action(action, record.status, record.requested)
    if record.requested == action:
        return
    record.requested = action
    match action:
        case UserAction.PAUSE | UserAction.CANCEL:
            record.status_reason, record.retry_after_s = StatusReason.STOPPED_BY_USER, None
            record.status_message = f"{'paused' if action == UserAction.PAUSE else 'cancelled'} on request"
        case UserAction.RESUME:
            record.status_reason, record.status_message = None, ""
            if record.attempts and record.attempts[-1].number == record.attempt:
                record.attempt += 1


def stand_still(stage: StageRecord) -> None:
    """A stage that runs no more has reached something, at no rate."""
    if stage.progress is not None:
        stage.progress = stage.progress.model_copy(update={"rate": None, "eta_s": None})


def _hand_over(record: JobRecord, reason: StatusReason, message: str) -> None:
    if record.status in STOPPING:
        settle(record)
        return
    record.status_reason, record.status_message = reason, message
    _end(record, "handed_over", message, StageStatus.PENDING)
    record.attempt += 1


def _require_waiting(record: JobRecord, attempt: int) -> None:
    if record.status not in GOES_ON or record.token is not None or record.attempt != attempt:
        raise NotThisAttempt


def _may_retry(record: JobRecord, detail: ErrorDetail, settings: Settings) -> bool:
    return record.retries.get(detail.reason, 0) < most_retries(detail.reason, settings)


def _end(
    record: JobRecord, reason: StatusReason | Literal["handed_over"] | None, message: str, stages: StageStatus
) -> None:
    """Close the attempt that runs, if one does, with the stages that it was in; the job belongs to nobody then."""
    moment = now()
    running = [stage for stage in record.stages if stage.status == StageStatus.RUNNING]
    if record.attempts and record.attempts[-1].ended_at is None:
        last = record.attempts[-1]
        last.ended_at, last.reason, last.message = max(moment, last.started_at), reason, message
        last.stage = running[0].name if running else None
    for stage in running:
        # The clock may have been set back since the stage started.
        stage.status, stage.finished_at = stages, max(moment, stage.started_at or moment)
        stand_still(stage)
        if stage.started_at is not None:
            stage.seconds = (stage.finished_at - stage.started_at).total_seconds()
    record.token = record.worker = None
