"""Commands on jobs that exist: `eyrie list|show|pause|resume|cancel|delete`."""

from typing import Annotated

import typer

from services.cli import completion
from services.cli.arguments import JobId
from services.cli.client import DEFAULT_URL, EyrieClient
from services.cli.job_text import error_text, render_job
from services.cli.options import (
    LimitOption,
    Output,
    OutputOption,
    UrlOption,
    console,
    pairs_of,
    print_deleted,
    print_items,
    print_json,
    say,
)
from services.cli.times import moment

STATUSES = ("queued", "running", "pausing", "paused", "cancelling", "succeeded", "failed", "cancelled")
COLUMNS = {
    "ID": "id",
    "STATUS": "status",
    "%": "progress.percent",
    "STAGE": "progress.stage",
    "PRESET": "preset",
    "NAME": "name",
    "CREATED": "created_at",
    "DRAFT": "draft",
}


def list_jobs(
    status: Annotated[
        str | None, typer.Option(help="Only jobs in this status.", autocompletion=lambda: list(STATUSES))
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Only jobs of this preset.", autocompletion=completion.presets)
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs of this name.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only jobs with this pair; may be given again.")
    ] = None,
    created_after: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only later jobs: RFC 3339, a date, or 30m, 12h, 7d ago.")
    ] = None,
    created_before: Annotated[str | None, typer.Option(metavar="WHEN", help="Only earlier jobs.")] = None,
    limit: LimitOption = 20,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs, newest first."""
    pairs = pairs_of("--metadata", metadata or [])
    times = {"created_after": moment(created_after), "created_before": moment(created_before)}
    with EyrieClient(url) as client:
        jobs = client.list_jobs(limit, status, preset, metadata=pairs, name=name, **times)
    print_items(jobs, COLUMNS, "no jobs", output)


def show(job: JobId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show a job as it is now."""
    with EyrieClient(url) as client:
        found = client.get_job(job)
    if output == Output.JSON:
        print_json(found)
        return
    console().print(render_job(found))
    if found["error"]:
        typer.echo(error_text(found["error"]), err=True)


def pause(job: JobId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Pause a job: what runs saves what it has, and `eyrie resume` goes on from there."""
    _ask(job, "pause", url, output)


def resume(job: JobId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Put a paused job back in line."""
    _ask(job, "resume", url, output)


def cancel(job: JobId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Cancel a job."""
    _ask(job, "cancel", url, output)


def delete(job: JobId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Remove a job that has ended, with its events and logs; what its stages made is left to `eyrie gc`."""
    with EyrieClient(url) as client:
        deleted = client.delete_job(job)
    print_deleted(deleted, output)


def _ask(job: str, action: str, url: str, output: Output) -> None:
    with EyrieClient(url) as client:
        found = client.ask(job, action)
    if output == Output.JSON:
        print_json(found)
    else:
        say(f"{found['id']} {found['status']}")
