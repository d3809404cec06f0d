"""Settings: what a file holds, and what is said of a wrong one."""

from pathlib import Path

import pytest

from shared.errors import UserError
from shared.settings import Settings, get_settings

PASSWORD = "p@ss/word:#1%"


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    return file


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("redis://redis:6379/2", "redis://:p%40ss%2Fword%3A%231%25@redis:6379/2"),
        ("rediss://eyrie@redis.internal", "rediss://eyrie:p%40ss%2Fword%3A%231%25@redis.internal"),
    ],
)
def test_the_password_of_the_file_gets_into_the_url(password_file: Path, url: str, whole: str) -> None:
    assert Settings(redis_url=url, redis_password_file=password_file).redis_url == whole


def test_without_a_file_the_url_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EYRIE_REDIS_PASSWORD_FILE", "")
    assert Settings(redis_url="redis://:known@redis").redis_url == "redis://:known@redis"


def test_a_url_that_nobody_set_counts_as_unset(password_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EYRIE_REDIS_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert "redis_url" not in Settings(redis_password_file=password_file).model_fields_set


@pytest.mark.parametrize("fault", ["absent", "empty", "twice"])
def test_a_password_that_cannot_be_had_is_told_in_one_line(
    password_file: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("EYRIE_REDIS_PASSWORD_FILE", str(password_file))
    monkeypatch.setenv("EYRIE_REDIS_URL", "redis://:other@redis" if fault == "twice" else "redis://redis")
    if fault == "absent":
        password_file.unlink()
    if fault == "empty":
        password_file.write_text(" \n")
    get_settings.cache_clear()
    with pytest.raises(UserError, match="EYRIE_REDIS_PASSWORD_FILE: ") as caught:
        get_settings()
    assert "\n" not in str(caught.value)
    assert "other" not in str(caught.value)
    get_settings.cache_clear()


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EYRIE_GATEWAY_PORT", "70000")
    get_settings.cache_clear()
    with pytest.raises(UserError, match="EYRIE_GATEWAY_PORT: "):
        get_settings()
    get_settings.cache_clear()


@pytest.mark.parametrize("name", [name for name, field in Settings.model_fields.items() if field.default is None])
def test_an_empty_variable_of_a_setting_without_a_default_counts_as_unset(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"EYRIE_{name.upper()}", "")
    assert not getattr(Settings(), name)
