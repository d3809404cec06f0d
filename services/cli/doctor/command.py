"""The command: collects the checks, runs them side by side, prints what they found."""

import os
from functools import partial
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from services.cli.client import DEFAULT_URL
from services.cli.doctor.accelerators import check_gpus, check_transformers_attention, check_vllm_attention
from services.cli.doctor.checks import Check, Finding, run_checks
from services.cli.doctor.machine import check_exchange, check_shared_memory, check_store, check_versions
from services.cli.doctor.servers import check_gateway, check_redis, check_verifier
from services.cli.options import Output, OutputOption, UrlOption, console, print_json
from shared.settings import Settings, variable_name

EXIT_PROBLEMS = 1
GRACE_S = 5.0  # for what is left of a probe that was ended
STYLES = {"ok": "green", "info": "dim", "warning": "yellow", "problem": "bold red"}


def doctor(
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, max=3600, help="Seconds that a check may take; all run at once.")
    ] = 120.0,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what this machine can do, what is wrong, and what to do about it.

    Looks at versions, GPUs, attention implementations, disks, shared memory, Redis, gateway and verifier, as the
    EYRIE_ variables name them. Exit code 1 when there is a problem.
    """
    report = examine(url, timeout)
    if output == Output.JSON:
        print_json(report)
    else:
        _print(report)
    if report["status"] != "ok":
        raise typer.Exit(EXIT_PROBLEMS)


def examine(url: str, timeout_s: float) -> dict[str, Any]:
    """Every finding, and whether one is a problem."""
    found = {**_settings_problems(), **run_checks(_checks(url, timeout_s), timeout_s + GRACE_S)}
    problems = [name for name, finding in found.items() if finding.status == "problem"]
    return {
        "object": "doctor.report",
        "status": "problems" if problems else "ok",
        "problems": problems,
        "checks": [finding.shown(name) for name, finding in found.items()],
    }


def _checks(url: str, timeout_s: float) -> dict[str, Check]:
    settings = _settings()
    is_set = url != DEFAULT_URL or "EYRIE_URL" in os.environ
    return {
        "versions": check_versions,
        "gpus": partial(check_gpus, timeout_s),
        "attention (transformers)": partial(check_transformers_attention, timeout_s),
        "attention (vLLM)": partial(check_vllm_attention, timeout_s),
        "store": partial(check_store, settings),
        "exchange": partial(check_exchange, settings),
        "shared memory": check_shared_memory,
        "redis": partial(check_redis, settings),
        "gateway": partial(check_gateway, url, is_set),
        "verifier": partial(check_verifier, settings),
    }


def _settings() -> Settings:
    """The settings as they are; those with a wrong one as if none were set."""
    try:
        return Settings()
    except ValidationError:
        return Settings.model_construct()


def _settings_problems() -> dict[str, Finding]:
    try:
        Settings()
    except ValidationError as error:
        wrong = [f"{variable_name(item['loc'])}: {item['msg']}" for item in error.errors()]
        hint = "correct the environment variables; until then the other checks go by the defaults"
        return {"settings": Finding("problem", "; ".join(wrong), hint)}
    return {}


def _print(report: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in report["checks"]:
        mark = Text(check["status"], style=STYLES[check["status"]])
        table.add_row(mark, Text(check["name"]), Text(check["summary"]))
        if check["hint"]:
            table.add_row("", "", Text(f"→ {check['hint']}", style="dim"))
    console().print(table)
    problems = ", ".join(report["problems"])
    typer.echo(f"\nproblems: {problems}" if problems else "\nno problems")
