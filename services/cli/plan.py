"""`eyrie plan`: what a job would need, before anything is started."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from services.cli.arguments import DatasetOption, PresetOption
from services.cli.client import DEFAULT_URL, EyrieClient
from services.cli.document import apply_overrides, load_document, set_value
from services.cli.errors import EXIT_BAD_INPUT
from services.cli.options import Output, OutputOption, UrlOption, console, print_json
from shared.sizes import human_bytes


def plan(
    file: Annotated[Path | None, typer.Argument(help="Job document, YAML or JSON.")] = None,
    preset: PresetOption = None,
    dataset: DatasetOption = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field, such as train.lr=1e-3.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what a job would need: tokens, disk, steps, parameters; and what stands against it. Nothing is started."""
    document = load_document(file) if file else {}
    for path, value in {"preset": preset, "data.dataset": dataset}.items():
        document = document if value is None else set_value(document, path.split("."), value)
    with EyrieClient(url) as client:
        found = client.plan_job(apply_overrides(document, overrides or []))
    if output == Output.JSON:
        print_json(found)
    else:
        _print_plan(found)
    if not found["ok"]:
        raise typer.Exit(EXIT_BAD_INPUT)


def _print_plan(plan: dict[str, Any]) -> None:
    where = console()
    for name, value in _facts(plan):
        where.print(f"{name:<18}{value}", markup=False, highlight=False)
    if plan["stages"]:
        where.print(_stage_table(plan["stages"]))
    for problem in plan["problems"]:
        where.print(Text(f"{problem['pointer'] or 'service'}: {problem['message']}", style="bold red"))


def _facts(plan: dict[str, Any]) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if tokens := plan["tokens"]:
        amount = tokens["tokens"]
        count = f"{amount['likely']:,} in {tokens['rows']:,} rows (at most {amount['most']:,})"
        facts.append(("tokens", count if tokens["basis"] != "generate" else f"{amount['likely']:,}, counted"))
    if plan["bytes_per_token"]:
        facts.append(("states", f"{plan['bytes_per_token']:,} bytes a token"))
    if parameters := plan["draft_parameters"]:
        facts.append(("draft", f"{plan['draft_parameters_total']:,} parameters, {parameters['trained']:,} trained"))
    if plan["steps"]:
        facts.append(("steps", f"about {plan['steps']:,}"))
    if memory := plan.get("gpu_memory_bytes"):
        facts.append(("GPU memory", f"{_amount(memory)} on each GPU that trains"))
    if plan.get("seconds") is not None:
        facts.append(("time", f"about {plan['seconds']:,.0f} s, by what earlier jobs took"))
    if plan["verifier_starts"] is not None:
        facts.append(("verifier starts", _starts(plan)))
    if plan["disk_bytes"]:
        facts.append(("disk", _amount(plan["disk_bytes"])))
    store = plan["store"]
    quota = store["quota_bytes"]
    used = f", {human_bytes(store['used_bytes'])} of a quota of {human_bytes(quota)} used" if quota else ""
    facts.append(("store", f"{human_bytes(store['free_bytes'])} free{used}"))
    for label, texts in (("note", plan["notes"]), ("assumed", (plan["tokens"] or {}).get("assumptions", []))):
        facts += [(label if not number else "", text) for number, text in enumerate(texts)]
    return facts


def _starts(plan: dict[str, Any]) -> str:
    starts, each = plan["verifier_starts"], plan["verifier_load_seconds"]
    if not starts or each is None:
        return str(starts)
    return f"{starts}, at {each:,.0f} s each by the latest: {plan['loading_seconds']:,.0f} s of loading"


def _stage_table(stages: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("STAGE", "DISK"):
        table.add_column(heading, no_wrap=True)
    for stage in stages:
        table.add_row(stage["name"], "reused" if stage["reused"] else _amount(stage["disk_bytes"]))
    return table


def _amount(amount: dict[str, int]) -> str:
    return f"about {human_bytes(amount['likely'])} (at most {human_bytes(amount['most'])})"
