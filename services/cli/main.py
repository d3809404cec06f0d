"""The command line: `eyrie COMMAND`, or `python -m services.cli.main COMMAND`.

EPILOG has the exit codes; `services.cli.errors` names them.
"""

import sys
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from services.cli import (
    compare,
    datasets,
    download_command,
    drafts,
    fleet,
    follow,
    history,
    inspect,
    jobs,
    keys,
    lineage,
    plan,
    presets,
    retention,
    rows,
    submit,
    webhooks,
)
from services.cli.credentials import NAMED_FILE
from services.cli.doctor.command import doctor
from services.cli.errors import EXIT_BAD_INPUT, EXIT_PIPE_CLOSED, ApiError

PROGRAM = "eyrie"
EPILOG = (
    "Every command has --help, --url (or EYRIE_URL) for the gateway, --api-key-file, and --output json for programs; "
    "docs/cli.md has an example of each.\n\n"
    "Exit codes: 0 fine; 1 the job failed or was cancelled, or a lineage does not verify, or doctor found "
    "a problem; 2 bad usage or input; "
    "3 the gateway cannot be reached, or cannot work; 4 not found; 5 the state does not allow it; "
    "6 the API key is missing or wrong; 130 detached or interrupted by Ctrl-C; "
    "141 the reader of what it prints has gone."
)
app = typer.Typer(
    name=PROGRAM,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train speculative-decoding drafts: submit jobs, follow them, and get the drafts.",
    epilog=EPILOG,
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


JOBS, RESULTS, SERVICE = "Jobs", "Data and drafts", "The service"
app.command(rich_help_panel=JOBS)(submit.submit)
app.command(rich_help_panel=JOBS)(plan.plan)
app.command("list", rich_help_panel=JOBS)(jobs.list_jobs)
app.command(rich_help_panel=JOBS)(jobs.show)
app.command(rich_help_panel=JOBS)(follow.watch)
app.command(rich_help_panel=JOBS)(follow.logs)
app.command(rich_help_panel=JOBS)(history.events)
app.command(rich_help_panel=JOBS)(history.metrics)
app.command(rich_help_panel=JOBS)(history.checkpoints)
app.command(rich_help_panel=JOBS)(history.artifacts)
app.command("rows", rich_help_panel=JOBS)(rows.show_rows)
app.command(rich_help_panel=JOBS)(jobs.pause)
app.command(rich_help_panel=JOBS)(jobs.resume)
app.command(rich_help_panel=JOBS)(jobs.cancel)
app.command(rich_help_panel=JOBS)(submit.retry)
app.command(rich_help_panel=JOBS)(jobs.delete)
app.add_typer(datasets.app, name="datasets", rich_help_panel=RESULTS)
app.command(rich_help_panel=RESULTS)(inspect.inspect)
app.add_typer(drafts.app, name="drafts", rich_help_panel=RESULTS)
app.command(rich_help_panel=RESULTS)(compare.compare)
app.command(rich_help_panel=RESULTS)(download_command.download)
app.command("lineage", rich_help_panel=RESULTS)(lineage.show_lineage)
app.command(rich_help_panel=SERVICE)(fleet.workers)
app.command(rich_help_panel=SERVICE)(fleet.gpus)
app.command(rich_help_panel=SERVICE)(fleet.verifiers)
app.command(rich_help_panel=SERVICE)(doctor)
app.command(rich_help_panel=SERVICE)(presets.presets)
app.command(rich_help_panel=SERVICE)(retention.gc)
app.add_typer(keys.app, name="keys", rich_help_panel=SERVICE)
app.add_typer(webhooks.app, name="webhooks", rich_help_panel=SERVICE)


def command_line() -> TyperGroup:
    """All commands; `--api-key-file` may also stand after each of them."""
    root = cast("TyperGroup", typer.main.get_command(app))
    option = copy(next(option for option in root.params if option.name == "api_key_file"))
    option.expose_value = False
    option.callback = _take_key_file
    for _, command in leaves(root):
        command.params.append(option)
    return root


def leaves(
    command: TyperGroup | TyperCommand, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    """The commands that do something, each with the words that lead to it."""
    if not isinstance(command, TyperGroup):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from leaves(cast("TyperGroup | TyperCommand", inner), (*path, name))


def main() -> None:
    """Run the command line; whatever goes wrong is said in a sentence."""
    try:
        command_line()(prog_name=PROGRAM)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # Typer makes a 1 of it, which would be a failed job
            sys.exit(EXIT_PIPE_CLOSED)
        raise
    except ApiError as error:
        _fail(error.message, error.errors, error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", [], EXIT_BAD_INPUT)


def _take_key_file(_context: Any, _option: Any, value: str | Path | None) -> None:
    if value is not None:
        NAMED_FILE.set(Path(value))


def _fail(message: str, fields: list[dict[str, Any]], code: int) -> None:
    typer.echo(f"error: {message}", err=True)
    for field in fields if len(fields) > 1 else []:
        typer.echo(f"  {field.get('pointer') or '/'}: {field.get('message')}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
