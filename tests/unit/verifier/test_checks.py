"""Bad input is refused before vLLM starts, with one line that says what, where and what to do."""

import json
import os
import socket

import pytest

from services.verifier import __main__ as program
from services.verifier.model_config import (
    VerifierConfigError,
    check,
    check_draft,
    check_port,
    check_shared_folder,
)
from shared.verifier_settings import VerifierMode, VerifierSettings

CONFIG = {"text_config": {"num_hidden_layers": 6, "hidden_size": 8, "vocab_size": 16}}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("EYRIE_VERIFIER_"):
            monkeypatch.delenv(name)


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def settings(model, tmp_path, free_port):
    return VerifierSettings(model=str(model), shared_folder=tmp_path / "exchange", port=free_port)


def test_good_settings_pass_and_the_shared_folder_is_made(settings):
    checked = check(settings)
    assert checked.layer_ids == (1, 3, 5, 6)
    assert settings.shared_folder.is_dir()
    assert list(settings.shared_folder.iterdir()) == []


def test_a_flat_config_is_read_too(settings, model):
    (model / "config.json").write_text(json.dumps(CONFIG["text_config"]))
    assert check(settings).layer_ids == (1, 3, 5, 6)


def test_layer_ids_are_left_alone_without_capture(settings, model):
    (model / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 16}))
    assert check(settings.model_copy(update={"mode": VerifierMode.PLAIN})).layer_ids == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json is not JSON"),
        ("[]", "config.json is not an object"),
        ('{"text_config": 3}', "config.json is not an object"),
        ('{"text_config": {"hidden_size": 8, "vocab_size": 0}}', "no positive num_hidden_layers, vocab_size"),
    ],
)
def test_an_unusable_config_is_refused_with_its_path(settings, model, content, message):
    (model / "config.json").write_text(content)
    with pytest.raises(VerifierConfigError, match=message) as caught:
        check(settings)
    assert str(model / "config.json") in str(caught.value)
    assert caught.value.hint


def test_a_missing_config_is_refused(settings, model):
    (model / "config.json").unlink()
    with pytest.raises(VerifierConfigError, match=r"no config.json"):
        check(settings)


def test_a_missing_model_folder_is_refused(settings, model):
    with pytest.raises(VerifierConfigError, match="no such verifier folder"):
        check(settings.model_copy(update={"model": str(model) + "-absent"}))


def test_a_shared_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(VerifierConfigError, match=r"cannot be written.*EYRIE_VERIFIER_SHARED_FOLDER"):
        check_shared_folder(tmp_path / "file" / "exchange")


def test_a_taken_port_is_refused(free_port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port))
        other.listen()
        with pytest.raises(VerifierConfigError, match=f"127.0.0.1:{free_port}: the port cannot be used"):
            check_port("127.0.0.1", free_port)


def test_an_address_of_another_machine_is_refused(free_port):
    with pytest.raises(VerifierConfigError, match="the port cannot be used"):
        check_port("203.0.113.7", free_port)


def test_a_draft_without_folder_config_or_weights_is_refused(tmp_path):
    with pytest.raises(VerifierConfigError, match="no such draft folder"):
        check_draft(tmp_path / "absent")
    with pytest.raises(VerifierConfigError, match=r"no config.json"):
        check_draft(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(VerifierConfigError, match="no weights"):
        check_draft(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    check_draft(tmp_path)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PORT": "many"}, "EYRIE_VERIFIER_PORT: Input should be a valid integer"),
        ({"LAYER_IDS": "[1, "}, "EYRIE_VERIFIER_LAYER_IDS"),
        ({"MODE": "draft"}, "mode draft needs draft_path"),
        ({"MODEL": "some/model", "TRUST_REMOTE_CODE": "true"}, "trust_remote_code needs revision"),
        ({"MODEL": "/absent"}, "/absent: there is no such verifier folder"),
        ({"LAYER_IDS": "[1, 9]"}, "layer ids [9] do not exist"),
    ],
)
def test_the_program_prints_one_line_and_ends_with_status_2(settings, monkeypatch, capsys, variables, message):
    for name, value in (settings.to_environ() | {f"EYRIE_VERIFIER_{k}": v for k, v in variables.items()}).items():
        monkeypatch.setenv(name, value)
    assert program.main(["--check"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err


def test_check_prints_the_command_and_starts_nothing(settings, monkeypatch, capsys):
    for name, value in settings.to_environ().items():
        monkeypatch.setenv(name, value)
    assert program.main(["--check"]) == 0
    assert f"--port {settings.port}" in capsys.readouterr().out
