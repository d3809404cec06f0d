"""`eyrie compare`: drafts side by side."""

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from services.cli import completion
from services.cli.acceptance import cut
from services.cli.client import DEFAULT_URL, EyrieClient, JsonObject
from services.cli.errors import BadInput
from services.cli.options import Output, OutputOption, UrlOption, console, print_json, print_table, say

MOST = 8
COLUMNS = {"ID": "id", "TAGS": "tags", "GATE": "gate", "VERIFIER": "verifier", "JOB": "job_id", "CREATED": "created_at"}


def compare(
    drafts: Annotated[
        list[str],
        typer.Argument(
            metavar="DRAFT DRAFT...", help="Ids of 2 to 8 drafts, or their tags.", autocompletion=completion.drafts
        ),
    ],
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare drafts: acceptance by suite and position, before and after, and where their job documents differ."""
    if not 2 <= len(drafts) <= MOST:
        raise BadInput(f"{len(drafts)} draft{'s' if len(drafts) != 1 else ''} given: name 2 to {MOST}")
    with EyrieClient(url) as client:
        found = client.compare_drafts(drafts)
    if output == Output.JSON:
        print_json(found)
        return
    print_table(found["drafts"], COLUMNS, "")
    for suite in found["suites"]:
        console().print(_suite_table(suite))
    _print_differences(found)
    for note in found.get("notes", []):
        say(f"note: {note}")


def _suite_table(suite: JsonObject) -> Table:
    k = suite["num_speculative_tokens"]
    table = Table(title=f"{suite['name']} (k = {k})", title_justify="left")
    for heading in ("draft", "", "length", *(f"position {position}" for position in range(k)), "gain", "measured"):
        table.add_column(heading)
    for entry in suite["entries"]:
        if before := entry["untrained"]:
            table.add_row(entry["draft"], "untrained", *_figures(before, k), "", before.get("mode", ""), style="dim")
        gain = "" if entry["gain"] is None else f"× {cut(entry['gain'])}"
        table.add_row(entry["draft"], "trained", *_figures(entry, k), gain, entry["mode"])
    return table


def _figures(figures: JsonObject, k: int) -> list[str]:
    positions = [*figures["per_position"], *[None] * k][:k]
    return [cut(value) for value in (figures["acceptance_length"], *positions)]


def _print_differences(found: JsonObject) -> None:
    ids = [draft["id"] for draft in found["drafts"]]
    if not found["differences"]:
        console().print("the job documents do not differ")
        return
    table = Table(title="Where the job documents differ", title_justify="left")
    for heading in ("field", *ids):
        table.add_column(heading, overflow="fold")
    for difference in found["differences"]:
        values: dict[str, Any] = difference["values"]
        table.add_row(Text(difference["path"]), *(Text(_word(values, draft)) for draft in ids))
    console().print(table)


def _word(values: dict[str, Any], draft: str) -> str:
    return "" if draft not in values else str(values[draft])
