"""Options that several commands have, and how results are printed."""

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli.client import DEFAULT_URL

PIPE_WIDTH = 400  # rich would cut lines at 80 columns where there is no terminal


class Output(StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


UrlOption = Annotated[str, typer.Option("--url", envvar="EYRIE_URL", help="The gateway.", show_default=DEFAULT_URL)]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people, or JSON for programs.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many, newest first.")]


def console() -> Console:
    """Where text for people goes."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


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
    for heading in columns:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_cell(row, key)) for key in columns.values()))
    console().print(table)


def _cell(row: Mapping[str, Any], key: str) -> str:
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)
