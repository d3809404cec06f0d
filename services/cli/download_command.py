"""`eyrie download`: a draft, or what a job's stages made."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

from services.cli import completion
from services.cli.arguments import StageOption
from services.cli.client import DEFAULT_URL, EyrieClient, JsonObject
from services.cli.errors import BadInput, Conflict, NotFound
from services.cli.options import Output, OutputOption, UrlOption, console, is_live, print_json, say


def download(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DRAFT_OR_JOB",
            help="Id or tag of a draft, or id of the job that made it.",
            autocompletion=completion.drafts_and_jobs,
        ),
    ],
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder; absent: one with the draft's or job's id, here.")
    ] = None,
    artifacts: Annotated[
        bool, typer.Option("--artifacts", help="What the job's stages made, instead of its draft.")
    ] = False,
    stage: StageOption = None,
    patterns: Annotated[
        list[str] | None,
        typer.Option("--file", metavar="PATTERN", help="Only such files, as '*.json'; may be given again."),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Download all files of a draft, checked; what was broken off goes on where it ended.

    With --artifacts, or --stage, the files of a job's finished stages.
    """
    is_job = source.startswith("job_")
    if (artifacts or stage) and not is_job:
        raise BadInput(f"--artifacts and --stage are for jobs, and {source} is a draft: it comes whole, or by --file")
    with EyrieClient(url) as client:
        name, files = _job_files(client, source, stage) if artifacts or stage else _draft_files(client, source, is_job)
        wanted = _chosen(files, patterns or [], name)
        folder = to or Path(name)
        paths = _download(client, wanted, folder, output)
    if output == Output.JSON:
        kind = "job" if artifacts or stage else "draft"
        print_json({kind: name, "folder": str(folder), "files": [str(path) for path in paths]})
    else:
        say(f"{name}: {len(paths)} files in {folder}")


def _job_files(client: EyrieClient, job: str, stage: str | None) -> tuple[str, list[JsonObject]]:
    files = client.list_artifacts(job, stage)
    if not files:
        raise Conflict(f"{job} has no files{f' of {stage}' if stage else ''} yet; follow it with: eyrie watch {job}")
    return job, files


def _draft_files(client: EyrieClient, source: str, is_job: bool) -> tuple[str, list[JsonObject]]:
    draft = _draft_of(client, source) if is_job else str(client.get_draft(source)["id"])
    return draft, client.list_draft_files(draft)


def _draft_of(client: EyrieClient, job_id: str) -> str:
    job = client.get_job(job_id)
    if not job["draft"]:
        raise Conflict(f"{job_id} has no draft: it is {job['status']}; follow it with: eyrie watch {job_id}")
    return str(job["draft"])


def _chosen(files: list[JsonObject], patterns: list[str], name: str) -> list[JsonObject]:
    if not patterns:
        return files
    chosen = [file for file in files if any(fnmatchcase(file["path"], pattern) for pattern in patterns)]
    if not chosen:
        raise NotFound(f"{name} has no file like {' or '.join(patterns)}: it has {', '.join(f['path'] for f in files)}")
    return chosen


def _download(client: EyrieClient, files: list[JsonObject], folder: Path, output: Output) -> list[Path]:
    where = console()
    if output == Output.JSON or not is_live(where):
        return client.download_files(files, folder)
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=where) as progress:
        tasks: dict[str, Any] = {}

        def advance(path: str, done: int, total: int) -> None:
            if path not in tasks:
                tasks[path] = progress.add_task(escape(path), total=total)
            progress.update(tasks[path], completed=done)

        return client.download_files(files, folder, advance)
