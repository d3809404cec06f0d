"""Commands for webhooks: `eyrie webhooks create|list|show|test|deliveries|delete`."""

from typing import Annotated

import typer

from services.cli.arguments import WebhookId
from services.cli.client import DEFAULT_URL, EyrieClient, JsonObject
from services.cli.fleet import document_text
from services.cli.options import (
    LimitOption,
    Output,
    OutputOption,
    UrlOption,
    complain,
    console,
    print_deleted,
    print_items,
    print_json,
    say,
)

app = typer.Typer(no_args_is_help=True, help="URLs that are called when jobs end: create, list, show, test, delete.")
EVENTS = ("job.succeeded", "job.failed", "job.cancelled")
COLUMNS = {
    "ID": "id",
    "URL": "url",
    "EVENTS": "events",
    "DISABLED": "disabled",
    "CREATED": "created_at",
    "DESCRIPTION": "description",
}
DELIVERY_COLUMNS = {
    "ID": "id",
    "EVENT": "event",
    "JOB": "job_id",
    "STATUS": "status",
    "TRIES": "tries",
    "CODE": "last.status_code",
    "ERROR": "last.error",
    "AT": "last.at",
    "NEXT": "next_attempt_at",
}


@app.command()
def create(
    target: Annotated[str, typer.Argument(metavar="URL", help="What to call, on a host that the gateway allows.")],
    events: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            help=f"{', '.join(EVENTS)}; may be given again; absent: all.",
            autocompletion=lambda: list(EVENTS),
        ),
    ] = None,
    description: Annotated[str | None, typer.Option(help="For people.")] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have a URL called when jobs end. Its secret, with which messages are signed, is shown this once."""
    with EyrieClient(url) as client:
        made = client.create_webhook(target, events or (), description)
    if output == Output.JSON:
        print_json(made)
        return
    typer.echo(made["secret"])
    complain(f"{made['id']}: keep the secret, it is not shown again; try it with: eyrie webhooks test {made['id']}")


@app.command("list")
def list_webhooks(limit: LimitOption = 20, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """List the webhooks."""
    with EyrieClient(url) as client:
        found = client.list_webhooks(limit)
    print_items(found, COLUMNS, "no webhooks", output)


@app.command()
def show(webhook: WebhookId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show a webhook."""
    with EyrieClient(url) as client:
        found = client.get_webhook(webhook)
    _print(found, output)


@app.command("test")
def send_test(webhook: WebhookId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Send a test message; `eyrie webhooks deliveries` says how that went."""
    with EyrieClient(url) as client:
        found = client.test_webhook(webhook)
    if output == Output.JSON:
        print_json(found)
    else:
        say(f"{found['id']} is on its way; how that went: eyrie webhooks deliveries {webhook}")


@app.command()
def deliveries(
    webhook: WebhookId, limit: LimitOption = 20, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE
) -> None:
    """List what was sent to a webhook, newest first, and how that went."""
    with EyrieClient(url) as client:
        found = client.list_deliveries(webhook, limit)
    print_items(found if output == Output.JSON else list(map(_counted, found)), DELIVERY_COLUMNS, "none", output)


@app.command()
def delete(webhook: WebhookId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Call a URL no longer."""
    with EyrieClient(url) as client:
        print_deleted(client.delete_webhook(webhook), output)


def _counted(delivery: JsonObject) -> JsonObject:
    attempts = delivery["attempts"]
    return {**delivery, "tries": len(attempts), "last": attempts[-1] if attempts else None}


def _print(found: JsonObject, output: Output) -> None:
    if output == Output.JSON:
        print_json(found)
    else:
        console().print(document_text(found), markup=False, highlight=False, soft_wrap=True, end="")
