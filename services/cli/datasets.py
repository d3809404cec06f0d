"""Commands for datasets: `eyrie datasets upload|list|show`."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.client import DEFAULT_URL, EyrieClient
from services.cli.options import LimitOption, Output, OutputOption, UrlOption, console, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Upload and list datasets.")
COLUMNS = {"ID": "id", "NAME": "name", "ROWS": "rows", "BYTES": "bytes", "CREATED": "created_at"}


@app.command()
def upload(
    file: Annotated[Path, typer.Argument(help="JSONL: one JSON object a line.")],
    name: Annotated[str | None, typer.Option(help="A name for people; absent: the file's.")] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TEXT,
) -> None:
    """Upload prompts or conversations."""
    with EyrieClient(url) as client:
        dataset = client.upload_dataset(file, name)
    if output == Output.JSON:
        print_json(dataset)
    else:
        console().print(f"{dataset['id']}: {dataset['rows']} rows, {dataset['bytes']} bytes", markup=False)


@app.command("list")
def list_datasets(limit: LimitOption = 20, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TEXT) -> None:
    """List datasets, newest first."""
    with EyrieClient(url) as client:
        datasets = client.list_datasets(limit)
    if output == Output.JSON:
        print_json(datasets)
    else:
        print_table(datasets, COLUMNS, "no datasets")


@app.command()
def show(
    dataset: Annotated[str, typer.Argument(help="Id of a dataset.")],
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a dataset."""
    with EyrieClient(url) as client:
        found = client.get_dataset(dataset)
    if output == Output.JSON:
        print_json(found)
    else:
        print_table([found], COLUMNS, "")
