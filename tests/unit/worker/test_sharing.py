"""What a stage shows to other machines through a remote store: neither a slow nor a broken store harms the run."""

import contextlib
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from services.worker import beside, log_upload
from services.worker.log_upload import shown_logs
from services.worker.run_control import PauseRequested
from services.worker.stage_attempt import StageAttempt
from shared.errors import ArtifactStoreError
from shared.schemas.job import Stage


@pytest.fixture
def control() -> Mock:
    return Mock(job_id="job_a", kept_alive=Mock(side_effect=contextlib.nullcontext))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_upload, "INTERVAL_S", 0.001)
    monkeypatch.setattr(beside, "END_S", 0.01)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "log-upload"]


def test_an_upload_of_logs_that_hangs_holds_up_neither_the_stage_nor_its_end(control: Mock) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def publish(_: str) -> None:
        begun.set()
        go_on.wait(60)

    try:
        with shown_logs(SimpleNamespace(remote=True, publish=publish), control):
            assert begun.wait(60)
            control.kept_alive.assert_not_called()
        control.kept_alive.assert_called_once_with()  # the lease is renewed while it is waited for
        assert len(threads()) == 1
    finally:
        go_on.set()
        for thread in threads():
            thread.join()


def test_logs_that_were_not_taken_are_uploaded_again(control: Mock) -> None:
    seen: list[str] = []
    third = threading.Event()

    def publish(key: str) -> None:
        seen.append(key)
        if len(seen) == 3:
            third.set()
        raise [ArtifactStoreError("away"), FileNotFoundError("moved"), ArtifactStoreError("away")][len(seen) % 3]

    with shown_logs(SimpleNamespace(remote=True, publish=publish), control):
        assert third.wait(60)
    assert set(seen) == {"jobs/job_a/logs"}


def test_a_folder_needs_no_upload(control: Mock) -> None:
    with shown_logs(SimpleNamespace(remote=False), control):
        assert threads() == []


@pytest.mark.parametrize("error", [ArtifactStoreError("away"), OSError("gone"), RuntimeError("a defect")])
def test_what_ended_a_stage_is_not_replaced_by_what_follows_it(control: Mock, error: Exception) -> None:
    attempt = StageAttempt.__new__(StageAttempt)
    attempt.record, attempt.control, attempt.stage = SimpleNamespace(id="job_a"), control, Stage.TRAIN
    broken = Mock(side_effect=error)

    def end() -> None:
        try:
            raise PauseRequested
        finally:
            attempt._afterwards(broken, "jobs/job_a/logs")

    with pytest.raises(PauseRequested):
        end()
    broken.assert_called_once_with("jobs/job_a/logs")
