"""Commands for drafts: `eyrie drafts list|show`."""

from typing import Annotated

import typer

from services.cli.acceptance import acceptance_table
from services.cli.client import DEFAULT_URL, EyrieClient
from services.cli.options import LimitOption, Output, OutputOption, UrlOption, console, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="List and show published drafts.")
COLUMNS = {
    "ID": "id",
    "GATE": "gate",
    "ALGORITHM": "algorithm",
    "VERIFIER": "verifier",
    "BYTES": "bytes",
    "JOB": "job_id",
    "CREATED": "created_at",
}


@app.command("list")
def list_drafts(limit: LimitOption = 20, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TEXT) -> None:
    """List drafts, newest first."""
    with EyrieClient(url) as client:
        drafts = client.list_drafts(limit)
    if output == Output.JSON:
        print_json(drafts)
    else:
        print_table(drafts, COLUMNS, "no drafts")


@app.command()
def show(
    draft: Annotated[str, typer.Argument(help="Id of a draft.")],
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a draft with its files."""
    with EyrieClient(url) as client:
        found, files = client.get_draft(draft), client.list_draft_files(draft)
    if output == Output.JSON:
        print_json({**found, "files": files})
        return
    print_table([found], COLUMNS, "")
    if found["evaluation"].get("suites"):
        console().print(acceptance_table(found["evaluation"]))
    print_table(files, {"FILE": "path", "BYTES": "size", "SHA-256": "sha256"}, "no files")
