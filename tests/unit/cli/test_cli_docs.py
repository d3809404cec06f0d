"""docs/cli.md has every command, and every example in it can be typed."""

import re
import shlex
from pathlib import Path

import pytest

from services.cli.errors import EXIT_DETACHED, EXIT_PIPE_CLOSED
from services.cli.main import EPILOG, command_line, leaves

DOCS = Path(__file__).resolve().parents[3] / "docs" / "cli.md"
TEXT = DOCS.read_text()
COMMANDS = dict(leaves(command_line()))
OF_EVERY_COMMAND = {"--url", "--output", "--api-key-file"}


def examples() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line]
    return [line.partition(" | ")[0] for line in lines]


def command_of(words: list[str]) -> tuple[str, ...]:
    return next(tuple(words[:size]) for size in (1, 2) if tuple(words[:size]) in COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_and_a_paragraph(path: tuple[str, ...]) -> None:
    shown = {command_of(shlex.split(line)[1:]) for line in examples()}
    own_options = {option for part in COMMANDS[path].params for option in part.opts if option.startswith("--")}
    assert path in shown
    assert f"**{' '.join(path)}**" in TEXT
    assert own_options >= OF_EVERY_COMMAND - ({"--url"} if path == ("doctor",) else set())


@pytest.mark.parametrize("line", examples())
def test_every_example_parses(line: str) -> None:
    program, *words = shlex.split(line)
    path = command_of(words)
    assert program == "eyrie"
    with COMMANDS[path].make_context(" ".join(path), words[len(path) :]) as context:
        assert not context.args


def test_exit_codes_are_in_the_help_and_the_same_in_the_guide() -> None:
    table = TEXT.partition("## Exit codes")[2].partition("\n## ")[0]
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)]
    said = [int(code) for code in re.findall(r"(?:codes: |; )(\d+) ", EPILOG)]
    assert codes == said == [*range(7), EXIT_DETACHED, EXIT_PIPE_CLOSED]


def test_what_does_not_parse_is_refused() -> None:
    words = ["job_x", "--no-such-option"]
    with pytest.raises(Exception, match="No such option"):
        COMMANDS[("show",)].make_context("show", words)
