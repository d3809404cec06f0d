"""Commands for datasets: `eyrie datasets upload|compose|list|show|delete`."""

import math
from pathlib import Path
from typing import Annotated

import typer

from services.cli.arguments import DatasetId
from services.cli.client import DEFAULT_URL, EyrieClient, JsonObject
from services.cli.errors import BadInput
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
)

app = typer.Typer(no_args_is_help=True, help="What jobs learn from: upload, compose, list, show, delete.")
COLUMNS = {"ID": "id", "NAME": "name", "ROWS": "rows", "BYTES": "bytes", "CREATED": "created_at"}


@app.command()
def upload(
    files: Annotated[
        list[Path], typer.Argument(help="JSONL (plain or gzip) or Parquet; several become one. Or a folder.")
    ],
    name: Annotated[str | None, typer.Option(help="A name for people; absent: the first file's.")] = None,
    weight: Annotated[
        list[str] | None, typer.Option(help="NAME=SHARE of a file (its name up to the first dot); others have 1.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Upload prompts, conversations or token ids; or one folder of ready-made rows or of a vocabulary."""
    if any(file.is_dir() for file in files):
        _upload_folder(files, name, weight, url, output)
        return
    with EyrieClient(url) as client:
        dataset = upload_files(client, files, name, weight)
    _print_dataset(dataset, output)


def _upload_folder(folders: list[Path], name: str | None, weight: list[str] | None, url: str, output: Output) -> None:
    if len(folders) > 1 or weight:
        raise BadInput("a folder is a dataset of its own: upload it alone, without --weight")
    with EyrieClient(url) as client:
        _print_dataset(client.upload_dataset(folders[0], name), output)


@app.command()
def compose(
    datasets: Annotated[list[str], typer.Argument(help="Ids of uploaded datasets, as ID or NAME=ID.")],
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    weight: Annotated[list[str] | None, typer.Option(help="NAME=SHARE, or ID=SHARE; others have 1.")] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a dataset of uploaded ones, with the share of each."""
    pairs = [(left if equals else "", right if equals else left) for left, equals, right in map(_cut, datasets)]
    weights = _weights(weight or [], [label or dataset for label, dataset in pairs])
    sources = [
        {"dataset": dataset}
        | ({"name": label} if label else {})
        | ({"weight": weights[label or dataset]} if (label or dataset) in weights else {})
        for label, dataset in pairs
    ]
    with EyrieClient(url) as client:
        _print_dataset(client.compose_dataset(sources, name), output)


@app.command("list")
def list_datasets(limit: LimitOption = 20, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """List datasets, newest first."""
    with EyrieClient(url) as client:
        datasets = client.list_datasets(limit)
    print_items(datasets, COLUMNS, "no datasets", output)


@app.command()
def show(
    dataset: DatasetId,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a dataset."""
    with EyrieClient(url) as client:
        found = client.get_dataset(dataset)
    if output == Output.JSON:
        print_json(found)
    else:
        print_table([found], COLUMNS, "")


@app.command()
def delete(dataset: DatasetId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Remove a dataset that no job, no draft and no other dataset refers to."""
    with EyrieClient(url) as client:
        print_deleted(client.delete_dataset(dataset), output)


def upload_files(
    client: EyrieClient, files: list[Path], name: str | None = None, weight: list[str] | None = None
) -> JsonObject:
    """Upload files; several, or such with weights, become one dataset of named sources.

    Raises:
        BadInput: two have one name, or a weight has none.
        ApiError
        OSError: a file cannot be read.
    """
    names = [file.name.partition(".")[0] or file.name for file in files]
    weights = _weights(weight or [], names)
    if len(set(names)) < len(names):
        raise BadInput(f"two files have the name {max(names, key=names.count)}: rename one, or use `datasets compose`")
    uploaded = [client.upload_dataset(file, name if len(files) == 1 and not weights else None) for file in files]
    if len(files) == 1 and not weights:
        return uploaded[0]
    sources = [
        {"dataset": item["id"], "name": source} | ({"weight": weights[source]} if source in weights else {})
        for item, source in zip(uploaded, names, strict=True)
    ]
    return client.compose_dataset(sources, name or files[0].name)


def _print_dataset(dataset: JsonObject, output: Output) -> None:
    if output == Output.JSON:
        print_json(dataset)
    else:
        console().print(f"{dataset['id']}: {dataset['rows']} rows, {dataset['bytes']} bytes", markup=False)


def _cut(text: str) -> tuple[str, str, str]:
    return text.partition("=")


def _weights(given: list[str], names: list[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for text in given:
        name, _, share = text.rpartition("=")
        try:
            weights[name] = float(share)
        except ValueError:
            weights[name] = 0.0
        if not 0 < weights[name] < math.inf:
            raise BadInput(f"--weight {text}: write NAME=SHARE with a share above 0, such as math=2")
        if name not in names:
            raise BadInput(f"--weight {text}: there is no source {name!r} among {', '.join(names)}")
    return weights
