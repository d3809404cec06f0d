"""The command line: `eyrie COMMAND`, or `python -m services.cli.main COMMAND`.

Exit codes: 0 fine, 1 the job failed (or was cancelled), or a lineage does not verify, 2 bad usage or input, 3 the
gateway cannot be reached or cannot work, 4 not found, 5 the state does not allow it, 6 the API key is
missing or wrong, 130 interrupted.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli import datasets, drafts, inspect, jobs, lineage, plan, retention, rows
from services.cli.credentials import NAMED_FILE
from services.cli.errors import EXIT_BAD_INPUT, ApiError

app = typer.Typer(
    name="eyrie",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train speculative-decoding drafts: submit jobs, follow them, and get the drafts.",
)


@app.callback()
def common(
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file", help="File with the API key; else EYRIE_API_KEY, or EYRIE_API_KEY_FILE, has it."
        ),
    ] = None,
) -> None:
    """Take what stands before the command."""
    NAMED_FILE.set(api_key_file)


app.command()(plan.plan)
app.command()(jobs.submit)
app.command("list")(jobs.list_jobs)
app.command()(jobs.show)
app.command()(jobs.watch)
app.command()(jobs.pause)
app.command()(jobs.resume)
app.command()(jobs.cancel)
app.command()(jobs.retry)
app.command()(jobs.logs)
app.command()(jobs.download)
app.command()(retention.gc)
app.command("rows")(rows.show_rows)
app.command("lineage")(lineage.show_lineage)
app.command()(inspect.inspect)
app.add_typer(datasets.app, name="datasets")
app.add_typer(drafts.app, name="drafts")


def main() -> None:
    """Run the command line; whatever goes wrong is said in a sentence."""
    try:
        app()
    except ApiError as error:
        _fail(error.message, error.errors, error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", [], EXIT_BAD_INPUT)


def _fail(message: str, fields: list[dict[str, Any]], code: int) -> None:
    typer.echo(f"error: {message}", err=True)
    for field in fields if len(fields) > 1 else []:
        typer.echo(f"  {field.get('pointer') or '/'}: {field.get('message')}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
