"""Commands for jobs: submit, list, show, watch, pause, resume, cancel, retry, logs, download."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

from services.cli.client import DEFAULT_URL, EyrieClient
from services.cli.document import apply_overrides, load_document, set_value
from services.cli.errors import EXIT_JOB_FAILED, BadInput, Conflict
from services.cli.options import LimitOption, Output, OutputOption, UrlOption, console, print_json, print_table
from services.cli.watch import error_text, render_job
from services.cli.watch import watch as follow

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of a job.")]
EXIT_DETACHED = 130
COLUMNS = {
    "ID": "id",
    "STATUS": "status",
    "%": "progress.percent",
    "STAGE": "progress.stage",
    "PRESET": "preset",
    "NAME": "name",
    "CREATED": "created_at",
    "DRAFT": "draft",
}


def submit(
    file: Annotated[Path | None, typer.Argument(help="Job document, YAML or JSON.")] = None,
    preset: Annotated[str | None, typer.Option(help="Preset that fills in what is left out.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSONL file to upload as the dataset.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Id of an uploaded dataset.")] = None,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    epochs: Annotated[int | None, typer.Option(help="train.epochs")] = None,
    gpus: Annotated[int | None, typer.Option(help="train.gpus and evaluate.gpus; 0 is the CPU.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field, such as train.lr=1e-3.")
    ] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Sent again, it stands for the same job.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job to its end.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TEXT,
) -> None:
    """Submit a job: a document, or flags alone (--preset tiny --prompts FILE)."""
    document = load_document(file) if file else {}
    if prompts and dataset:
        raise BadInput("give --prompts or --dataset, not both")
    flags: dict[str, Any] = {
        "preset": preset,
        "name": name,
        "data.dataset": dataset,
        "train.epochs": epochs,
        "train.gpus": gpus,
        "evaluate.gpus": gpus,
    }
    for path, value in flags.items():
        document = document if value is None else set_value(document, path.split("."), value)
    document = apply_overrides(document, overrides or [])
    with EyrieClient(url) as client:
        if prompts:
            uploaded = client.upload_dataset(prompts)
            document = set_value(document, ["data", "dataset"], uploaded["id"])
        if not isinstance(document.get("data"), dict) or not document["data"].get("dataset"):
            raise BadInput("the job has no dataset: give --prompts FILE, --dataset ID, or data.dataset in the document")
        job = client.create_job(document, idempotency_key)
        if watch:
            _follow(client, job["id"], output)
        elif output == Output.JSON:
            print_json(job)
        else:
            console().print(f"{job['id']} {job['status']}; follow it with: eyrie watch {job['id']}", markup=False)


def list_jobs(
    status: Annotated[str | None, typer.Option(help="Only jobs in this status.")] = None,
    preset: Annotated[str | None, typer.Option(help="Only jobs of this preset.")] = None,
    limit: LimitOption = 20,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TEXT,
) -> None:
    """List jobs, newest first."""
    with EyrieClient(url) as client:
        jobs = client.list_jobs(limit, status, preset)
    if output == Output.JSON:
        print_json(jobs)
    else:
        print_table(jobs, COLUMNS, "no jobs")


def show(job: JobId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TEXT) -> None:
    """Show a job as it is now."""
    with EyrieClient(url) as client:
        found = client.get_job(job)
    _print_job(found, output)


def watch(job: JobId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TEXT) -> None:
    """Follow a job to its end. Ctrl-C detaches; the job goes on."""
    with EyrieClient(url) as client:
        _follow(client, job, output)


def pause(job: JobId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TEXT) -> None:
    """Pause a job: what runs saves what it has, and `eyrie resume` goes on from there."""
    _ask(job, "pause", url, output)


def resume(job: JobId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TEXT) -> None:
    """Put a paused job back in line."""
    _ask(job, "resume", url, output)


def cancel(job: JobId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TEXT) -> None:
    """Cancel a job."""
    _ask(job, "cancel", url, output)


def retry(
    job: JobId,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the new job to its end.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TEXT,
) -> None:
    """Do a failed or cancelled job again, as a new job that takes over what is finished."""
    with EyrieClient(url) as client:
        again = client.ask(job, "retry")
        if watch:
            _follow(client, again["id"], output)
        elif output == Output.JSON:
            print_json(again)
        else:
            text = f"{again['id']} {again['status']}, again for {job}; follow it with: eyrie watch {again['id']}"
            console().print(text, markup=False, soft_wrap=True)


def logs(
    job: JobId,
    stage: Annotated[str | None, typer.Option(help="One stage; absent: all.")] = None,
    tail: Annotated[int, typer.Option(min=1, max=100_000, help="Last lines of each log.")] = 1000,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what the stages' processes wrote."""
    with EyrieClient(url) as client:
        text = client.get_logs(job, stage, tail)
    if output == Output.JSON:
        print_json({"job": job, "stage": stage, "text": text})
    else:
        typer.echo(text, nl=False)


def download(
    source: Annotated[str, typer.Argument(metavar="DRAFT_OR_JOB", help="Id of a draft, or of the job that made it.")],
    to: Annotated[Path | None, typer.Option("--to", help="Folder; absent: one with the draft's id, here.")] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TEXT,
) -> None:
    """Download all files of a draft, checked; what was broken off goes on where it ended."""
    with EyrieClient(url) as client:
        draft = _draft_of(client, source) if source.startswith("job_") else source
        folder = to or Path(draft)
        if output == Output.JSON:
            files = client.download_draft(draft, folder)
            print_json({"draft": draft, "folder": str(folder), "files": [str(file) for file in files]})
            return
        files = _download_shown(client, draft, folder)
    console().print(f"{draft}: {len(files)} files in {folder}", markup=False)


def _ask(job: str, action: str, url: str, output: Output) -> None:
    with EyrieClient(url) as client:
        found = client.ask(job, action)
    if output == Output.JSON:
        print_json(found)
    else:
        console().print(f"{found['id']} {found['status']}", markup=False)


def _download_shown(client: EyrieClient, draft: str, folder: Path) -> list[Path]:
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console()) as progress:
        tasks: dict[str, Any] = {}

        def advance(path: str, done: int, total: int) -> None:
            if path not in tasks:
                tasks[path] = progress.add_task(escape(path), total=total)
            progress.update(tasks[path], completed=done)

        return client.download_draft(draft, folder, advance)


def _draft_of(client: EyrieClient, job_id: str) -> str:
    job = client.get_job(job_id)
    if not job["draft"]:
        raise Conflict(f"{job_id} has no draft: it is {job['status']}; follow it with: eyrie watch {job_id}")
    return str(job["draft"])


def _follow(client: EyrieClient, job_id: str, output: Output) -> None:
    where = console()
    if output == Output.JSON:
        where.stderr = True
    try:
        job = follow(client, job_id, where)
    except KeyboardInterrupt:
        typer.echo(f"detached; {job_id} goes on. Follow it with: eyrie watch {job_id}", err=True)
        raise typer.Exit(EXIT_DETACHED) from None
    if output == Output.JSON:
        print_json(job)
    elif job["draft"]:
        where.print(f"draft {job['draft']}; get it with: eyrie download {job['draft']}", markup=False)
    if job["status"] != "succeeded":
        raise typer.Exit(EXIT_JOB_FAILED)


def _print_job(job: dict[str, Any], output: Output) -> None:
    if output == Output.JSON:
        print_json(job)
        return
    console().print(render_job(job))
    if job["error"]:
        typer.echo(error_text(job["error"]), err=True)
