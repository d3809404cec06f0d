"""The tables of the life cycle: states, what a person may ask for, and which ends of an attempt are tried again."""

import itertools
from datetime import timedelta

import pytest

from shared import attempts
from shared.errors import StatusReason
from shared.presets import resolve
from shared.retry_policy import RETRIES, most_retries, wait_s
from shared.schemas.job import (
    ErrorDetail,
    JobRecord,
    JobStatus,
    Progress,
    Stage,
    StageStatus,
    UserAction,
    now,
)
from shared.settings import Settings
from shared.state_machine import (
    ACTIONS,
    STOPPING,
    TERMINAL,
    TRANSITIONS,
    ActionRefused,
    IllegalTransition,
    after_action,
    check_transition,
)

SETTINGS = Settings(max_attempts=3, retry_wait_s=10)


@pytest.fixture
def record() -> JobRecord:
    moment = now()
    return JobRecord(id="job_x", spec=resolve({"data": {"dataset": "ds_x"}}), created_at=moment, updated_at=moment)


def run(record: JobRecord, stage: Stage = Stage.TRAIN) -> None:
    attempts.begin(record, record.attempt, f"token-{record.attempt}", "worker")
    record.stage(Stage.PREPARE).status = StageStatus.SUCCEEDED
    record.stage(stage).status, record.stage(stage).started_at = StageStatus.RUNNING, now()


def error(reason: StatusReason) -> ErrorDetail:
    return ErrorDetail(reason=reason, message="it broke")


def test_no_way_leads_out_of_a_terminal_state_and_every_other_state_reaches_one() -> None:
    assert {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED} == TERMINAL
    for status in JobStatus:
        reached = {status}
        while more := {following for known in reached for following in TRANSITIONS[known]} - reached:
            reached |= more
        assert reached & TERMINAL
        assert status not in TERMINAL or reached == {status}


def test_what_is_not_in_the_table_is_refused() -> None:
    for current, wanted in itertools.product(JobStatus, JobStatus):
        if wanted == current or wanted in TRANSITIONS[current]:
            check_transition(current, wanted)
        else:
            with pytest.raises(IllegalTransition):
                check_transition(current, wanted)


def test_every_action_follows_the_transitions_and_may_be_asked_for_twice() -> None:
    for action, status in itertools.product(UserAction, JobStatus):
        if status not in ACTIONS[action]:
            with pytest.raises(ActionRefused, match=str(status)):
                after_action(action, status, None)
            continue
        after = after_action(action, status, None)
        check_transition(status, after)
        assert after_action(action, after, action) == after


def test_resuming_what_nobody_paused_is_refused_and_resuming_again_is_fine() -> None:
    for status in (JobStatus.QUEUED, JobStatus.RUNNING):
        with pytest.raises(ActionRefused):
            after_action(UserAction.RESUME, status, None)
        assert after_action(UserAction.RESUME, status, UserAction.RESUME) == status


def test_every_reason_says_whether_it_is_tried_again() -> None:
    assert set(RETRIES) == set(StatusReason)
    retried = {reason: most_retries(reason, SETTINGS) for reason in StatusReason if most_retries(reason, SETTINGS)}
    assert retried == {"worker_lost": 2, "oom_host": 1, "upstream_verifier": 2, "internal": 1}
    assert [wait_s(StatusReason.UPSTREAM_VERIFIER, tried, SETTINGS) for tried in (0, 1)] == [10, 40]
    assert wait_s(StatusReason.WORKER_LOST, 1, SETTINGS) == 0


@pytest.mark.parametrize("reason", StatusReason)
def test_an_end_is_tried_again_as_often_as_the_table_says_and_then_fails_the_job(
    reason: StatusReason, record: JobRecord
) -> None:
    most = most_retries(reason, SETTINGS)
    for number in range(1, most + 2):
        assert record.attempt == number
        run(record)
        attempts.fail(record, error(reason), SETTINGS)
    assert (record.status, record.status_reason, record.token) == (JobStatus.FAILED, reason, None)
    assert record.error is not None
    assert record.retries == ({reason: most} if most else {})
    assert [attempt.number for attempt in record.attempts] == list(range(1, most + 2))
    assert {(attempt.reason, attempt.stage) for attempt in record.attempts} == {(reason, Stage.TRAIN)}
    assert record.stage(Stage.TRAIN).status == StageStatus.FAILED


def test_each_reason_has_its_own_bound(record: JobRecord) -> None:
    for reason in (StatusReason.OOM_HOST, StatusReason.WORKER_LOST, StatusReason.WORKER_LOST, StatusReason.INTERNAL):
        run(record)
        attempts.fail(record, error(reason), SETTINGS)
        assert record.status == JobStatus.RUNNING
    run(record)
    attempts.fail(record, error(StatusReason.OOM_HOST), SETTINGS)
    assert record.status == JobStatus.FAILED


def test_a_wait_is_said_and_kept(record: JobRecord) -> None:
    run(record)
    attempts.fail(record, error(StatusReason.UPSTREAM_VERIFIER), SETTINGS)
    assert (record.status, record.attempt, record.retry_after_s) == (JobStatus.RUNNING, 2, 10)
    assert record.status_message == "it broke; trying again in 10 s (retry 1 of 2)"
    run(record)
    assert (record.retry_after_s, record.status_reason, record.status_message) == (None, None, "")


def test_handing_over_counts_as_no_failure_however_often(record: JobRecord) -> None:
    for _ in range(100):
        run(record)
        attempts.hand_over(record)
    assert (record.status, record.retries, record.attempt) == (JobStatus.RUNNING, {}, 101)
    assert len(record.attempts) == attempts.ATTEMPTS_KEPT
    assert record.attempts[-1].number == 100
    assert record.attempts[-1].reason == "handed_over"


@pytest.mark.parametrize(("asked", "end"), STOPPING.items())
def test_what_was_asked_for_is_done_however_the_attempt_ends(
    asked: JobStatus, end: JobStatus, record: JobRecord
) -> None:
    def lose(record: JobRecord) -> None:
        attempts.lose(record, SETTINGS)

    def break_down(record: JobRecord) -> None:
        attempts.fail(record, error(StatusReason.INTERNAL), SETTINGS)

    run(record)
    record.status = asked
    for finish in (attempts.settle, attempts.hand_over, lose, break_down):
        ended = record.model_copy(deep=True)
        finish(ended)
        assert (ended.status, ended.token, ended.retries) == (end, None, {})
        assert all(stage.status != StageStatus.RUNNING for stage in ended.stages)
        assert ended.attempts[-1].reason == StatusReason.STOPPED_BY_USER


def test_a_job_that_finishes_while_it_is_paused_succeeds_and_one_that_is_cancelled_does_not(record: JobRecord) -> None:
    for asked, end in ((JobStatus.PAUSING, JobStatus.SUCCEEDED), (JobStatus.CANCELLING, JobStatus.CANCELLED)):
        finished = record.model_copy(deep=True)
        run(finished)
        finished.status = asked
        attempts.succeed(finished)
        assert finished.status == end


def test_only_the_message_of_the_attempt_that_is_due_starts_it(record: JobRecord) -> None:
    with pytest.raises(attempts.NotThisAttempt):
        attempts.begin(record, 2, "a", "worker")
    attempts.begin(record, 1, "a", "worker")
    attempts.begin(record, 1, "a", "worker")  # Redis had gone away before it said so
    assert len(record.attempts) == 1
    with pytest.raises(attempts.NotThisAttempt):
        attempts.begin(record, 1, "b", "worker")
    for status in set(JobStatus) - {JobStatus.QUEUED, JobStatus.RUNNING}:
        record.status, record.token = status, None
        with pytest.raises(attempts.NotThisAttempt):
            attempts.begin(record, 1, "c", "worker")


def test_a_stage_that_is_run_again_has_reached_what_it_had(record: JobRecord) -> None:
    run(record)
    record.stage(Stage.TRAIN).progress = Progress(done=40, total=100, unit="steps", rate=2, eta_s=30, updated_at=now())
    attempts.lose(record, SETTINGS)
    stage = record.stage(Stage.TRAIN)
    assert stage.status == StageStatus.PENDING
    assert stage.progress is not None
    assert (stage.progress.done, stage.progress.rate, stage.progress.eta_s) == (40, None, None)


def test_a_job_that_was_paused_in_mid_run_goes_on_as_another_attempt(record: JobRecord) -> None:
    attempts.decide(record, UserAction.PAUSE)
    attempts.decide(record, UserAction.RESUME)
    assert (record.status, record.attempt) == (JobStatus.QUEUED, 1)
    run(record)
    attempts.decide(record, UserAction.PAUSE)
    assert record.status == JobStatus.PAUSING
    attempts.settle(record)
    attempts.decide(record, UserAction.RESUME)
    assert (record.status, record.attempt, record.status_reason) == (JobStatus.QUEUED, 2, None)
    attempts.decide(record, UserAction.RESUME)
    assert record.attempt == 2


def test_a_clock_that_is_set_back_in_mid_stage_ends_no_stage_before_it_began(record: JobRecord) -> None:
    run(record)
    stage = record.stage(Stage.TRAIN)
    stage.started_at = now() + timedelta(minutes=10)
    attempts.hand_over(record)
    assert stage.finished_at == stage.started_at
    assert stage.seconds == 0
