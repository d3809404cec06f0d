"""`eyrie gc`: what nothing refers to any more in the store, and removing it."""

from typing import Annotated

import typer

from services.cli.client import DEFAULT_URL, EyrieClient
from services.cli.options import Output, OutputOption, UrlOption, print_json, print_table

COLUMNS = {"KIND": "kind", "BYTES": "bytes", "KEY": "key", "WHY": "reason"}
GIB = 1024**3


def gc(
    apply: Annotated[bool, typer.Option("--apply", help="Remove it; without this it is only listed.")] = False,
    retention_days: Annotated[
        float | None, typer.Option(min=0, help="Keep what is younger; absent: as the gateway is set.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what no job and no draft refers to any more; with --apply, remove it."""
    with EyrieClient(url) as client:
        report = client.collect_garbage(apply=apply, retention_days=retention_days)
    if output == Output.JSON:
        print_json(report)
        return
    print_table(report["items"], COLUMNS, "nothing to remove")
    for reason in report["kept"]:
        typer.echo(f"kept: {reason}")
    if report["items"]:
        verb = "removed" if report["applied"] else "to remove with --apply"
        typer.echo(f"{report['bytes'] / GIB:.2f} GiB {verb}")
