"""What a logger may know: the variables that are listed, where its job asks for it, and in the train stage alone."""

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError

from services.worker import integrations
from services.worker.integrations import (
    VARIABLES,
    loggers_of,
    require_loggers,
    trainer_variables,
    worker_variables,
)
from services.worker.supervision import LOGGER_PREFIXES, marked_environment, without_loggers
from shared.errors import UserError
from shared.presets import resolve
from shared.schemas.spec import JobSpec

WORKER = {
    "PATH": "/bin",
    "WANDB_API_KEY": "secret-w",
    "WANDB_PROGRAM": "x",
    "MLFLOW_TRACKING_PASSWORD": "secret-m",
    "TRACKIO_SPACE_ID": "someone/public",
    "TRACKIO_DIR": "/elsewhere",
}


def spec(**fields: object) -> JobSpec:
    return resolve({"preset": "tiny", "data": {"dataset": "ds_x"}, **fields})


def test_no_stage_gets_a_loggers_variables_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WORKER.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("EYRIE_API_KEY", "secret-k")
    environment = marked_environment("token")
    assert not [name for name in environment if name.startswith(LOGGER_PREFIXES)]
    assert "EYRIE_API_KEY" not in environment
    assert worker_variables(["wandb"], WORKER) == {"WANDB_API_KEY": "secret-w"}
    assert worker_variables(["mlflow", "tensorboard"], WORKER) == {"MLFLOW_TRACKING_PASSWORD": "secret-m"}
    assert without_loggers(WORKER) == {"PATH": "/bin"}


def test_nothing_leaves_the_machine_unless_the_worker_says_so(tmp_path: Path) -> None:
    own = trainer_variables(["trackio", "wandb", "mlflow"], tmp_path, {"WANDB_API_KEY": "w"})
    assert own["TRACKIO_DIR"] == str(tmp_path / "trackio")
    assert own["WANDB_MODE"] == "offline"
    assert own["MLFLOW_TRACKING_URI"].startswith(f"sqlite:///{tmp_path}")
    told = {"WANDB_MODE": "online", "MLFLOW_TRACKING_URI": "https://mlflow.example"}
    asked = trainer_variables(["wandb", "mlflow"], tmp_path, told)
    assert told.items() <= asked.items()
    assert "TRACKIO_SPACE_ID" not in VARIABLES["trackio"]


def test_a_logger_that_was_asked_for_and_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrations, "is_installed", lambda name: name == "tensorboard")
    with pytest.raises(UserError, match=r"/integrations/1: the logger wandb is not installed") as caught:
        require_loggers(spec(integrations=["tensorboard", "wandb"]))
    assert "pip install wandb" in str(caught.value)
    require_loggers(spec())
    assert loggers_of(spec()) == ([], ["trackio"])
    assert loggers_of(spec(integrations=[])) == ([], [])
    monkeypatch.setattr(integrations, "is_installed", lambda _: True)
    assert loggers_of(spec()) == (["trackio"], [])


@pytest.mark.parametrize(
    "fields",
    [
        {"integrations": ["wandb", "wandb"]},
        {"integrations": ["neptune"]},
        {"integrations": [{"wandb": {"api_key": "x"}}]},
        {"wandb_api_key": "x"},
        {"train": {"wandb": {"api_key": "x"}}},
    ],
)
def test_a_document_cannot_carry_credentials(fields: dict) -> None:
    with pytest.raises(ValidationError):
        spec(**fields)


def test_a_loggers_error_is_told_without_what_the_worker_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from services.worker.training.loggers import guarded

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://someone:word@mlflow.example")
    monkeypatch.setenv("WANDB_API_KEY", "secret-w")
    told: list[str] = []

    class Writer:
        def event(self, kind: str, message: str) -> None:
            told.append(f"{kind}: {message}")

    def emit(_handler: logging.Handler, _record: logging.LogRecord) -> None:
        raise ConnectionError("https://someone:word@mlflow.example refused secret-w")

    handler, record = logging.NullHandler(), logging.makeLogRecord({})
    quiet = guarded(emit, Writer())
    quiet(handler, record)
    quiet(handler, record)
    assert told == ["warning: the logger Null failed and is left out from here on: ConnectionError: *** refused ***"]
