"""`eyrie rows JOB [ROW]`: what a job trains on, with the learnt tokens marked."""

from typing import Annotated, Any

import typer
from rich.text import Text

from services.cli.arguments import JobId
from services.cli.client import DEFAULT_URL, EyrieClient
from services.cli.options import LimitOption, Output, OutputOption, UrlOption, console, print_json, print_table

COLUMNS = {
    "ROW": "row_id",
    "SPLIT": "split",
    "SOURCE": "source",
    "LINE": "line",
    "TOKENS": "seq_len",
    "LEARNT": "supervised",
    "ENDED": "finish_reason",
}


def show_rows(
    job: JobId,
    row: Annotated[str | None, typer.Argument(metavar="ROW", help="Id of one row; absent: list them.")] = None,
    split: Annotated[str | None, typer.Option(help="Only rows of this split: train or val.")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Show token ids instead of text.")] = False,
    limit: LimitOption = 20,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """List a job's rows, or print one with its learnt tokens coloured (in «these» where there is no terminal)."""
    with EyrieClient(url) as client:
        found: Any = client.get_row(job, row) if row else client.list_rows(job, limit, split)
    if output == Output.JSON:
        print_json(found)
    elif row is None:
        print_table(found, COLUMNS, "no rows")
    else:
        where = console()
        where.print(row_text(found, ids=ids, marks=not where.is_terminal), soft_wrap=True)


def row_text(row: dict[str, Any], *, ids: bool, marks: bool) -> Text:
    """A row for people: a line of facts, then its tokens, the learnt ones marked."""
    facts = f"{row['row_id']}  {row['split']}  {row['seq_len']} tokens, {row['supervised']} learnt"
    if row["line"] is not None:
        facts += f"  {row['source'] or 'data'} line {row['line']}"
    text = Text(f"{facts}\n", style="bold")
    if not ids and row["segments"][0]["text"] is None:
        text.append(f"{row['text_source']}\n", style="yellow")
    for segment in row["segments"]:
        words = segment["text"]
        shown = " ".join(map(str, segment["token_ids"])) if ids or words is None else words
        if segment["supervised"]:
            text.append(f"«{shown}»" if marks else shown, style="bold green")
        else:
            text.append(shown, style="dim")
        text.append(" " if shown != words else "")
    if row["last_id"] is not None:
        text.append(f"\nlast id {row['last_id']}: the target of the last state", style="dim")
    return text
