"""`eyrie inspect`: what a job would keep, reject and learn of a dataset, before there is a job."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from services.cli.arguments import PresetOption
from services.cli.client import DEFAULT_URL, EyrieClient
from services.cli.datasets import upload_files
from services.cli.document import apply_overrides, set_value
from services.cli.errors import EXIT_BAD_INPUT, BadInput
from services.cli.inspection_text import inspection_text
from services.cli.options import Output, OutputOption, UrlOption, console, print_json

DATASET_ID = re.compile(r"ds_[0-9a-z]+")


def inspect(
    target: Annotated[
        list[str], typer.Argument(metavar="DATASET_OR_FILE...", help="Id of a dataset; or files, which are uploaded.")
    ],
    preset: PresetOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Fields of data and verifier, such as data.generate=false."),
    ] = None,
    sample: Annotated[int | None, typer.Option(min=0, help="Rows to render for token lengths; 0: none.")] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Inspect a dataset: counts, rejects with their first lines, token lengths, three samples with what is learnt.

    Starts no job. Exit code 2 when no job could use it.
    """
    body = apply_overrides(_flags(preset, sample), overrides or [])
    with EyrieClient(url) as client:
        dataset = _dataset(client, target, output)
        found = _follow(client, dataset, body, output)
    if output == Output.JSON:
        print_json(found)
    else:
        console().print(inspection_text(found))
    if found["problem"]:
        raise typer.Exit(EXIT_BAD_INPUT)


def _flags(preset: str | None, sample: int | None) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for name, value in {"preset": preset, "sample": sample}.items():
        body = body if value is None else set_value(body, [name], value)
    return body


def _dataset(client: EyrieClient, target: list[str], output: Output) -> str:
    """The id that is meant; files are uploaded, and their dataset stays."""
    known = [name for name in target if DATASET_ID.fullmatch(name) and not Path(name).exists()]
    if known and len(target) > 1:
        raise BadInput(f"{known[0]} is a dataset: give one, or files alone")
    if known:
        return known[0]
    dataset = upload_files(client, list(map(Path, target)))
    _status(output).print(f"uploaded {', '.join(target)} as {dataset['id']}", markup=False, highlight=False)
    return str(dataset["id"])


def _follow(client: EyrieClient, dataset: str, body: dict[str, Any], output: Output) -> dict[str, Any]:
    """Ask until the inspection is finished; on a terminal its progress is shown."""
    with _status(output).status("inspecting ...") as status:
        while (found := client.inspect_dataset(dataset, body))["status"] == "running":
            progress = found["progress"]
            status.update(
                f"{progress['phase']}: {progress['rows']} rows read ({progress['share']:.0%}), "
                f"{progress['rendered']} rendered"
            )
    return found


def _status(output: Output) -> Console:
    """Where what is not the result goes."""
    return Console(stderr=True) if output == Output.JSON else console()
