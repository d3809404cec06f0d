"""Options that several commands have, and how results are printed."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli.client import DEFAULT_URL
from services.cli.errors import BadInput

NEVER_CUT = frozenset({"id", "job_id", "draft", "row_id", "path"})  # what is copied into the next command
TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z")
PIPE_WIDTH = 400  # rich would cut lines at 80 columns where there is no terminal


class Output(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


UrlOption = Annotated[str, typer.Option("--url", envvar="EYRIE_URL", help="The gateway.", show_default=DEFAULT_URL)]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people, or JSON for programs.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many, newest first.")]


def console(*, stderr: bool = False) -> Console:
    """Where text for people goes: with colours on a terminal (but for NO_COLOR), plain elsewhere."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PIPE_WIDTH)


def is_live(where: Console) -> bool:
    """Tell whether lines can be drawn over: on a terminal that can, whatever FORCE_COLOR says."""
    return where.file.isatty() and where.is_terminal and not where.is_dumb_terminal


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_json_line(value: Any) -> None:
    """Print one value of a stream: JSON in a line, there at once for who reads along."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def say(text: str, *, stderr: bool = False) -> None:
    """Print a line as it is: no markup, and not cut where there is a terminal."""
    console(stderr=stderr).print(text, markup=False, highlight=False, soft_wrap=True)


def complain(text: str) -> None:
    """Say something that is not the result."""
    say(text, stderr=True)


def print_items(items: Sequence[Mapping[str, Any]], columns: Mapping[str, str], nothing: str, output: Output) -> None:
    """Print a list as a table or as JSON; `columns` and `nothing` as in `print_table`."""
    if output == Output.JSON:
        print_json(items)
    else:
        print_table(items, columns, nothing)


def print_deleted(answer: Mapping[str, Any], output: Output) -> None:
    """Say that something is gone."""
    if output == Output.JSON:
        print_json(answer)
    else:
        say(f"{answer['id']} deleted")


def pairs_of(option: str, given: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE options as a mapping.

    Raises:
        BadInput: one is no pair.
    """
    for text in given:
        if not text.partition("=")[0] or "=" not in text:
            raise BadInput(f"{option} {text}: write KEY=VALUE")
    return {key: value for key, _, value in (text.partition("=") for text in given)}


def print_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], nothing: str) -> None:
    """Print rows as a table.

    Args:
        columns: key of each value, by heading.
        nothing: what to say where there are no rows.
    """
    if not rows:
        console().print(nothing)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    cells = [[_cell(row, key) for key in columns.values()] for row in rows]
    for number, (heading, key) in enumerate(columns.items()):
        whole = max(len(row[number]) for row in cells) if key in NEVER_CUT else None
        table.add_column(heading, no_wrap=True, min_width=whole)
    for row in cells:
        table.add_row(*map(Text, row))
    console().print(table)


def _cell(row: Mapping[str, Any], key: str) -> str:
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, str) and (time := TIME.fullmatch(value)):
        return f"{time[1]}Z"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
