"""`eyrie presets [PRESET]`: the presets, or what one fills in."""

from typing import Annotated

import typer

from services.cli import completion
from services.cli.client import DEFAULT_URL, EyrieClient
from services.cli.errors import NotFound
from services.cli.fleet import document_text
from services.cli.options import Output, OutputOption, UrlOption, console, print_items, print_json

COLUMNS = {"NAME": "name", "DEFAULT": "default", "MODEL": "document.verifier.model"}


def presets(
    preset: Annotated[
        str | None,
        typer.Argument(metavar="PRESET", help="One of them; absent: all.", autocompletion=completion.presets),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the presets, or show what one fills in, as a job document."""
    with EyrieClient(url) as client:
        found = client.list_presets()
    if preset is None:
        print_items(found, COLUMNS, "no presets", output)
        return
    one = next((item for item in found if item["name"] == preset), None)
    if one is None:
        raise NotFound(f"no preset {preset}: there are {', '.join(item['name'] for item in found)}")
    if output == Output.JSON:
        print_json(one)
    else:
        console().print(document_text(one["document"]), markup=False, highlight=False, soft_wrap=True, end="")
