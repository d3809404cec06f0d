"""Shell completion: ids from the gateway, and not a word where there is none."""

import pytest

from services.cli import completion
from shared.schemas.job import JobRecord
from tests.integration.cli.conftest import Shell


def completed(shell: Shell, words: str) -> list[str]:
    """What bash would be offered for the last of the words."""
    shell.monkeypatch.setenv("_EYRIE_COMPLETE", "complete_bash")
    shell.monkeypatch.setenv("COMP_WORDS", words)
    shell.monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    offered = shell().split()
    assert shell.errors == ""
    return offered


def test_ids_and_commands_are_completed(shell: Shell, finished: JobRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "WAIT_S", 30.0)
    assert finished.id in completed(shell, "eyrie watch job_")
    assert completed(shell, f"eyrie download {finished.draft[:-1]}") == [finished.draft]
    assert completed(shell, "eyrie datasets del") == ["delete"]
    assert "train" in completed(shell, "eyrie logs x --stage t")
    assert completed(shell, "eyrie submit --preset ti") == ["tiny"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "not a url"])
def test_without_a_gateway_nothing_is_offered_and_nothing_said(url: str, shell: Shell) -> None:
    shell.monkeypatch.setenv("EYRIE_URL", url)
    assert completed(shell, "eyrie watch job_") == []


def test_without_the_key_nothing_is_offered_and_nothing_said(shell: Shell) -> None:
    shell.monkeypatch.setenv("EYRIE_API_KEY_FILE", "/no/such/file")
    assert completed(shell, "eyrie watch job_") == []
