"""Commands for drafts, the registry: `eyrie drafts list|show|tag|untag|delete`."""

from typing import Annotated

import typer

from services.cli import completion
from services.cli.acceptance import acceptance_table
from services.cli.arguments import DraftId
from services.cli.client import DEFAULT_URL, EyrieClient, JsonObject
from services.cli.options import (
    LimitOption,
    Output,
    OutputOption,
    UrlOption,
    console,
    print_deleted,
    print_items,
    print_json,
    print_table,
    say,
)

app = typer.Typer(no_args_is_help=True, help="The registry of published drafts: list, show, tag, delete.")
Tag = Annotated[str, typer.Argument(metavar="TAG", help="Such as production: a-z, 0-9, dot, dash, underscore.")]
COLUMNS = {
    "ID": "id",
    "TAGS": "tags",
    "GATE": "gate",
    "ALGORITHM": "algorithm",
    "VERIFIER": "verifier",
    "BYTES": "bytes",
    "JOB": "job_id",
    "CREATED": "created_at",
}


@app.command("list")
def list_drafts(
    verifier: Annotated[str | None, typer.Option(help="Only drafts for this verifier.")] = None,
    gate: Annotated[
        str | None,
        typer.Option(help="Only such: passed, failed or none.", autocompletion=lambda: ["passed", "failed", "none"]),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only the draft that has this tag.")] = None,
    job: Annotated[str | None, typer.Option(help="Only drafts of this job.", autocompletion=completion.jobs)] = None,
    limit: LimitOption = 20,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """List drafts, newest first."""
    with EyrieClient(url) as client:
        drafts = client.list_drafts(limit, verifier=verifier, gate=gate, tag=tag, job=job)
    print_items(drafts, COLUMNS, "no drafts", output)


@app.command()
def show(draft: DraftId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show a draft with its files."""
    with EyrieClient(url) as client:
        found = client.get_draft(draft)
        files = client.list_draft_files(found["id"])
    if output == Output.JSON:
        print_json({**found, "files": files})
        return
    print_table([found], COLUMNS, "")
    if found["evaluation"].get("suites"):
        console().print(acceptance_table(found["evaluation"]))
    print_table(files, {"FILE": "path", "BYTES": "size", "SHA-256": "sha256"}, "no files")


@app.command()
def tag(draft: DraftId, tag: Tag, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Give a draft a tag, by which it can be named; another draft that has it loses it."""
    with EyrieClient(url) as client:
        _print_tags(client.tag_draft(draft, tag), output)


@app.command()
def untag(draft: DraftId, tag: Tag, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Take a tag from a draft."""
    with EyrieClient(url) as client:
        _print_tags(client.untag_draft(draft, tag), output)


@app.command()
def delete(draft: DraftId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Remove a draft that has no tag from the registry; its files are left to `eyrie gc`."""
    with EyrieClient(url) as client:
        print_deleted(client.delete_draft(draft), output)


def _print_tags(draft: JsonObject, output: Output) -> None:
    if output == Output.JSON:
        print_json(draft)
    else:
        say(f"{draft['id']} has {'the tags ' + ', '.join(draft['tags']) if draft['tags'] else 'no tags'}")
