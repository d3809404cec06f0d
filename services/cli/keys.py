"""Commands for API keys: `eyrie keys create|list|delete`."""

from typing import Annotated

import typer

from services.cli.client import DEFAULT_URL, EyrieClient
from services.cli.options import (
    LimitOption,
    Output,
    OutputOption,
    UrlOption,
    complain,
    print_deleted,
    print_items,
    print_json,
)

app = typer.Typer(no_args_is_help=True, help="API keys of the gateway: create, list, delete.")
COLUMNS = {"ID": "id", "NAME": "name", "SOURCE": "source", "CREATED": "created_at"}


@app.command()
def create(
    name: Annotated[str | None, typer.Option(help="A name for people: who has it, and what for.")] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a key. It is printed alone, and this once: `eyrie keys create --name ci > ci.key`."""
    with EyrieClient(url) as client:
        made = client.create_key(name)
    if output == Output.JSON:
        print_json(made)
        return
    typer.echo(made["key"])
    complain(f"{made['id']}: keep the key, it is not shown again")


@app.command("list")
def list_keys(limit: LimitOption = 100, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """List the keys, without what they are."""
    with EyrieClient(url) as client:
        found = client.list_keys(limit)
    print_items(found, COLUMNS, "no keys", output)


@app.command()
def delete(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Id of a key, such as key_...: not the key itself.")],
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have a key work no longer."""
    with EyrieClient(url) as client:
        print_deleted(client.delete_key(key), output)
