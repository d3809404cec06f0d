"""Log lines: what they hold, and what they never show."""

import json
import logging
from collections.abc import Iterator

import pytest

from shared.ids import new_id
from shared.logs import log_context, set_up_logging

SECRETS = ["hunter2", "eyk_abcDEF123-_", "whsec_c2VjcmV0", "deadbeef.cafe"]
SAID = "redis://eyrie:hunter2@redis:6379/0 refused; Authorization: Bearer deadbeef.cafe; eyk_abcDEF123-_ whsec_c2VjcmV0"


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_json_line_has_the_job_the_attempt_and_the_stage_that_it_is_about(capsys) -> None:
    set_up_logging("worker", "json")
    log = logging.getLogger("services.worker.pipeline")
    with log_context(job="job_a", attempt=2):
        with log_context(stage="train"):
            log.info("step %d", 3)
        log.warning("over")
    log.info("idle")
    first, second, third = said(capsys)
    assert (first["job"], first["attempt"], first["stage"], first["message"]) == ("job_a", 2, "train", "step 3")
    assert (first["service"], first["level"], first["logger"]) == ("worker", "INFO", "services.worker.pipeline")
    assert first["time"]
    assert (second["job"], second["level"], "stage" in second) == ("job_a", "WARNING", False)
    assert not {"job", "attempt", "stage"} & third.keys()


def test_a_job_that_a_message_names_is_a_field_of_its_line(capsys) -> None:
    set_up_logging("gateway", "json")
    job = new_id("job")
    logging.getLogger("reconciler").info("job %s: given on for the %d. time", job, 2)
    (line,) = said(capsys)
    assert line["job"] == job


def test_an_exception_stays_in_its_line(capsys) -> None:
    set_up_logging("worker", "json")
    try:
        raise OSError("disk\nfull")
    except OSError:
        logging.getLogger().exception("defect")
    (line,) = said(capsys)
    assert "disk\nfull" in str(line["exception"])


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_line_shows_a_secret(capsys, form) -> None:
    set_up_logging("gateway", form)
    log = logging.getLogger("services.gateway")
    log.info("%s", SAID)
    try:
        raise ConnectionError(SAID)
    except ConnectionError:
        log.exception("Redis went away")
    text = capsys.readouterr().err
    assert text.count("redis:6379") == 2
    assert [secret for secret in SECRETS if secret in text] == []
