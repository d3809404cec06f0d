"""Commands that follow a job: `eyrie watch|logs`. Ctrl-C only detaches from it."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from services.cli.arguments import JobId, StageOption
from services.cli.client import DEFAULT_URL, EyrieClient, JsonObject
from services.cli.errors import EXIT_DETACHED, EXIT_JOB_FAILED, ApiError, NotFound
from services.cli.options import Output, OutputOption, UrlOption, complain, console, print_json_line, say
from services.cli.watch import watch as watch_job

LAST_LINES = 20
TAIL = 1000
OF_THE_DOCUMENT = frozenset({"user_error", "timeout", "diverged", "oom_gpu"})  # reasons for which it has to change


def watch(job: JobId, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Follow a job to its end; exit code 1 unless it succeeds. Ctrl-C detaches; the job goes on."""
    with EyrieClient(url) as client:
        follow_job(client, job, output)


def logs(
    job: JobId,
    stage: StageOption = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Which run of the stage; absent: the latest, with -f all.")
    ] = None,
    tail: Annotated[
        int, typer.Option("--tail", "-n", min=1, max=100_000, help="Last lines: of each log, with -f of all together.")
    ] = TAIL,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written, to the job's end.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what the stages' processes wrote.

    Ctrl-C detaches from -f; the job goes on. As JSON, each line of the log is a line of JSON.
    """
    with EyrieClient(url) as client:
        if follow:
            client.get_job(job)
            again = f"eyrie logs -f {job}" + (f" --stage {stage}" if stage else "")
            detachable(job, again, lambda: _follow_logs(client, job, stage, attempt, tail, output))
        elif output == Output.JSON:
            for line in client.list_log_lines(job, stage, tail, attempt):
                print_json_line(line)
        else:
            typer.echo(client.get_logs(job, stage, tail, attempt), nl=False)


def follow_job(client: EyrieClient, job_id: str, output: Output) -> None:
    """Follow a job to its end, and say what became of it.

    Raises:
        typer.Exit: it did not succeed, or whoever watches has gone away.
    """
    detachable(job_id, f"eyrie watch {job_id}", lambda: _follow(client, job_id, output))


def detachable(job_id: str, again: str, follow: Callable[[], None]) -> None:
    """Follow something; Ctrl-C leaves the job as it is and says how to come back.

    Raises:
        typer.Exit: on Ctrl-C.
    """
    try:
        follow()
    except KeyboardInterrupt:
        complain(f"detached; {job_id} goes on. Come back with: {again}")
        raise typer.Exit(EXIT_DETACHED) from None


def _follow(client: EyrieClient, job_id: str, output: Output) -> None:
    where = console(stderr=output == Output.JSON)
    job = watch_job(client, job_id, where, each=print_json_line if output == Output.JSON else None)
    if output == Output.TABLE and job["draft"]:
        say(f"draft {job['draft']}; get it with: eyrie download {job['draft']}")
    if job["status"] == "failed":
        _explain(client, job)
    if job["status"] != "succeeded":
        raise typer.Exit(EXIT_JOB_FAILED)


def _explain(client: EyrieClient, job: JsonObject) -> None:
    """The last lines that the failed stage wrote, and what to do; the error itself stands above."""
    reason, docs = job["error"]["reason"], job["error"]["docs"]
    complain(f"about such errors: {docs}")
    stage = next((stage["name"] for stage in job["stages"] if stage["status"] == "failed"), None)
    if stage:
        try:
            lines = client.get_logs(job["id"], stage, LAST_LINES)
        except NotFound:  # it failed before its process wrote anything
            lines = ""
        except ApiError as error:
            lines = f"{error.message}\n"
        if lines:
            complain(f"last lines of {stage}:\n{lines.rstrip()}")
            complain(f"all of them: eyrie logs {job['id']} --stage {stage}")
    if reason in OF_THE_DOCUMENT:
        complain(f"the same again would end the same way: change its document, as {docs} says, and submit that:")
        complain(f"eyrie show {job['id']} -o json | jq .spec > job.json; eyrie submit job.json --watch")
    else:
        complain(f"when that is mended, do the job again with: eyrie retry {job['id']} --watch")


def _follow_logs(
    client: EyrieClient, job: str, stage: str | None, attempt: int | None, tail: int, output: Output
) -> None:
    shown: Any = None
    for line in client.follow_logs(job, stage=stage, attempt=attempt, tail=tail, notice=complain):
        if output == Output.JSON:
            print_json_line(line)
            continue
        if shown != (here := (line["stage"], line["attempt"])) and not (stage and shown is None):
            typer.echo(f"==> {here[0]}-{here[1]} <==")
        shown = here
        typer.echo(line["line"])
