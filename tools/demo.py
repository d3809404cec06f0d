"""The main job from end to end on this machine: prompts in, an evaluated EAGLE-3 draft out.

    make demo                       # with the shipped prompts
    make demo PROMPTS=my.jsonl      # with yours

Starts Redis, the tiny verifier, gateway and worker, submits one job over REST, shows its progress, prints a report
(also as `var/demo/report.json`), and stops everything again. Each run has a folder of its own in `var/demo/runs`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from services.cli.client import EyrieClient
from services.cli.errors import ApiError
from services.cli.watch import watch
from shared.presets import TINY_VERIFIER
from shared.verifier_settings import VerifierMode, VerifierSettings
from tools import local_stack
from tools.local_stack import ROOT, Stack
from tools.stack_services import StackError, usable_port

DEMO_FOLDER = ROOT / "var" / "demo"
PROMPTS = ROOT / "assets" / "prompts" / "demo.jsonl"
SERVE_PORT = 8000
BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130


class DemoFailed(Exception):
    """The job did not succeed; the message says why."""


def run(prompts: Path, folder: Path, console: Console) -> dict[str, Any]:
    """Run the demo in `folder` and return its report.

    Raises:
        StackError: a service did not start.
        ApiError: the prompts or the job were refused.
        DemoFailed: the job ended otherwise than succeeded.
    """
    started = time.monotonic()
    console.print(f"Starting Redis, gateway, worker and the tiny verifier (logs in {folder / 'logs'})")
    console.print("They listen on loopback only and run without an API key")
    stack = local_stack.start(folder)
    try:
        with EyrieClient(stack.gateway_url) as client:
            dataset = client.upload_dataset(prompts)
            console.print(f"{dataset['rows']} prompts uploaded as {dataset['id']}")
            _wait_for_verifier(stack, console)
            job = client.create_job({"preset": "tiny", "name": "demo", "data": {"dataset": dataset["id"]}})
            console.print(f"Job {job['id']} submitted to {stack.gateway_url}")
            job = watch(client, job["id"], console)
            if job["status"] != "succeeded":
                raise DemoFailed(_reason(job))
            draft_path = folder / "draft"
            client.download_draft(job["draft"], draft_path)
            return make_report(job, draft_path, time.monotonic() - started)
    finally:
        console.print("Stopping the services")
        local_stack.stop(stack)


def make_report(job: dict[str, Any], draft_path: Path, wall_seconds: float) -> dict[str, Any]:
    """Collect what the demo ends with from the finished job."""
    stages = {stage["name"]: stage for stage in job["stages"]}
    evaluation = stages["evaluate"]["summary"]
    suite = evaluation["suites"]["heldout"]
    capture, vocabulary = stages["capture"]["summary"], stages["vocab"]["summary"]
    return {
        "job": job["id"],
        "draft": job["draft"],
        "acceptance_length": {name: suite[name]["acceptance_length"] for name in ("trained", "untrained")},
        "per_position": {name: suite[name]["per_position"] for name in ("trained", "untrained")},
        "num_speculative_tokens": evaluation["num_speculative_tokens"],
        "prompts": {
            "trained_on": capture["num_train"],
            "held_out": capture["num_val"],
            "evaluated": suite["trained"]["prompts"],
        },
        "tokens_trained_on": capture["supervised_train_tokens"],
        "vocabulary_coverage": vocabulary["coverage_val"],
        "training": stages["train"]["summary"],
        "stages": {name: stage["seconds"] for name, stage in stages.items()},
        "books": {name: stage["summary"].get("accounting") for name, stage in stages.items()},
        "draft_path": str(draft_path),
        "serve_command": serve_command(draft_path, evaluation["num_speculative_tokens"]),
        "wall_seconds": wall_seconds,
    }


def write_report(report: dict[str, Any], folder: Path, latest: Path) -> Path:
    """Write the report into the run's own folder, and let `latest` be a link to it. Reports of earlier runs stay."""
    path = folder / "report.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if latest.exists() and not latest.is_symlink():
        latest.rename(latest.with_name(f"report-before-{folder.name}.json"))
    link = folder / "report.link"
    link.symlink_to(os.path.relpath(path, latest.parent))
    link.replace(latest)
    return latest


def serve_command(draft_path: Path, k: int) -> str:
    """The vLLM command that serves the tiny verifier with the draft beside it."""
    settings = VerifierSettings.model_validate(
        {
            "model": str(TINY_VERIFIER),
            "served_model_name": TINY_VERIFIER.name,
            "device": "cpu",
            "mode": VerifierMode.DRAFT,
            "draft_path": draft_path,
            "num_speculative_tokens": k,
            "port": usable_port("server", None),
        }
    )
    checked = subprocess.run(
        [sys.executable, "-m", "services.verifier", "--check"],
        env={**os.environ, **settings.to_environ()},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if checked.returncode != 0:
        raise DemoFailed(f"the published draft cannot be served: {checked.stderr.strip()}")
    return checked.stdout.strip().replace(f"--port {settings.port}", f"--port {SERVE_PORT}")


def print_report(report: dict[str, Any], path: Path, console: Console) -> None:
    """Print the report for people."""
    k = report["num_speculative_tokens"]
    table = Table(title=f"Acceptance on {report['prompts']['evaluated']} prompts that training never saw (k = {k})")
    table.add_column("draft")
    table.add_column("acceptance length", justify="right")
    for position in range(k):
        table.add_column(f"position {position}", justify="right")
    for name in ("untrained", "trained"):
        values = [report["acceptance_length"][name], *report["per_position"][name]]
        table.add_row(name, *(cut(value) for value in values))
    console.print(table)
    stages = Table(title="Stages")
    stages.add_column("stage")
    stages.add_column("seconds", justify="right")
    for name, seconds in report["stages"].items():
        stages.add_row(name, f"{seconds:.1f}")
    console.print(stages)
    console.print(f"Trained on    {report['tokens_trained_on']} tokens of {report['prompts']['trained_on']} answers")
    console.print(f"Draft         {report['draft_path']}", soft_wrap=True)
    console.print(f"Report        {path}", soft_wrap=True)
    console.print(f"Whole run     {report['wall_seconds']:.0f} s")
    console.print("Serve it with:", style="bold")
    console.print(report["serve_command"], soft_wrap=True, highlight=False, markup=False)


def cut(value: float | None) -> str:
    """A figure with three decimals, cut and never rounded up."""
    return "none" if value is None else f"{int(value * 1000) / 1000:.3f}"


def _wait_for_verifier(stack: Stack, console: Console) -> None:
    with console.status("The verifier is loading") as status:
        local_stack.wait_for_verifier(stack, lambda s: status.update(f"The verifier is loading, {s:.0f} s"))
    console.print("The verifier is ready")


def _reason(job: dict[str, Any]) -> str:
    error = job.get("error") or {}
    parts = [error.get("where"), error.get("message"), error.get("hint")]
    return f"the job {job['status']}: " + "; ".join(str(part) for part in parts if part)


def _stop_on_sigterm(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0 when a draft was published, else the reason on standard error."""
    parser = argparse.ArgumentParser(prog="make demo", description="Train and evaluate a small draft.")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL file with your own prompts")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop_on_sigterm)
    console, errors = Console(), Console(stderr=True)
    folder = DEMO_FOLDER / "runs" / time.strftime("%Y%m%d-%H%M%S")
    try:
        if not options.prompts.is_file():
            errors.print(f"error: there is no prompts file {options.prompts}", markup=False, soft_wrap=True)
            return BAD_INPUT
        report = run(options.prompts.absolute(), folder, console)
    except (StackError, ApiError) as error:
        errors.print(f"error: {error}", markup=False, soft_wrap=True)
        return BAD_INPUT
    except DemoFailed as error:
        errors.print(f"error: {error} (logs: {folder})", markup=False, soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        errors.print("interrupted: everything that was started is stopped", markup=False)
        return INTERRUPTED
    path = write_report(report, folder, DEMO_FOLDER / "report.json")
    print_report(report, path, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
