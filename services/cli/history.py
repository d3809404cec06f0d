"""Commands on what a job did and made: `eyrie events|metrics|checkpoints|artifacts`."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from services.cli.arguments import JobId, StageOption
from services.cli.client import DEFAULT_URL, EyrieClient, JsonObject
from services.cli.follow import detachable
from services.cli.options import (
    LimitOption,
    Output,
    OutputOption,
    UrlOption,
    complain,
    print_items,
    print_json_line,
    print_table,
    say,
)

MOST_POINTS = 20
CHECKPOINT_COLUMNS = {"STEP": "step", "EPOCH": "epoch", "KIND": "kind", "AVAILABLE": "available", "AT": "at"}
FILE_COLUMNS = {"FILE": "path", "BYTES": "size", "SHA-256": "sha256"}


def events(
    job: JobId,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only these, such as stage, metric, warning, checkpoint; may be given again."),
    ] = None,
    after: Annotated[str | None, typer.Option(help="Id of the last event seen.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, to the job's end.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many, oldest first; -f has all.")] = 1000,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what happened to a job, oldest first.

    Ctrl-C detaches from -f; the job goes on. As JSON, each event is a line.
    """
    with EyrieClient(url) as client:
        if not follow:
            _print_events(client.list_events(job, after, limit, types or ()), output)
            return
        client.get_job(job)
        stream = client.follow_events(job, after=after, types=types or (), notice=complain)
        detachable(job, f"eyrie events -f {job}", lambda: _print_events(stream, output))


def metrics(
    job: JobId,
    stage: StageOption = None,
    names: Annotated[
        list[str] | None, typer.Option("--name", help="Only this figure, such as loss; may be given again.")
    ] = None,
    max_points: Annotated[
        int | None, typer.Option(min=2, max=10_000, help="Thin evenly to so many; absent: 20 in a table, else all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many, by step.")] = 100_000,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what the stages measured, by step: loss, acceptance, rates."""
    points = MOST_POINTS if max_points is None and output == Output.TABLE else max_points
    with EyrieClient(url) as client:
        found = client.list_metrics(job, limit, stage=stage, names=names or (), max_points=points)
    columns = {"STAGE": "stage", "STEP": "step", **_columns(found, "values")}
    print_items(
        [_flat(point, "values") for point in found] if output == Output.TABLE else found, columns, "no metrics", output
    )


def checkpoints(
    job: JobId, limit: LimitOption = 100, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE
) -> None:
    """List the checkpoints of a job's training: where it can go on, which is best, which is published."""
    with EyrieClient(url) as client:
        found = client.list_checkpoints(job, limit)
    if output == Output.JSON:
        print_items(found, {}, "", output)
        return
    columns = {**CHECKPOINT_COLUMNS, **_columns(found, "metrics")}
    print_table([_flat(checkpoint, "metrics") for checkpoint in found], columns, "no checkpoints")


def artifacts(
    job: JobId, stage: StageOption = None, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE
) -> None:
    """List the files of a job's finished stages; `eyrie download JOB --artifacts` brings them."""
    with EyrieClient(url) as client:
        found = client.list_artifacts(job, stage)
    print_items(found, FILE_COLUMNS, "no files: no stage has finished", output)


def _print_events(found: Iterable[JsonObject], output: Output) -> None:
    for event in found:
        if output == Output.JSON:
            print_json_line(event)
        else:
            words = " ".join(f"{name}={_word(value)}" for name, value in event["data"].items() if value is not None)
            say(f"{event['at']}  {event['id']}  {event['type']}  {words}".rstrip())


def _word(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _columns(found: list[JsonObject], key: str) -> dict[str, str]:
    """A column for each figure, in the order in which they first appear."""
    return {name: name for item in found for name in item[key] or {}}


def _flat(item: JsonObject, key: str) -> JsonObject:
    return {**item, **{name: _word(value) for name, value in (item[key] or {}).items()}}
