"""Commands that make jobs: `eyrie submit|retry`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.arguments import DatasetOption, JobId, PresetOption
from services.cli.client import DEFAULT_URL, EyrieClient, JsonObject
from services.cli.document import apply_overrides, load_document, set_value
from services.cli.errors import BadInput
from services.cli.follow import follow_job
from services.cli.options import Output, OutputOption, UrlOption, print_json, say


def submit(
    file: Annotated[Path | None, typer.Argument(help="Job document, YAML or JSON.")] = None,
    preset: PresetOption = None,
    prompts: Annotated[Path | None, typer.Option(help="JSONL file to upload as the dataset.")] = None,
    dataset: DatasetOption = None,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    epochs: Annotated[int | None, typer.Option(help="train.epochs")] = None,
    gpus: Annotated[int | None, typer.Option(help="train.gpus and evaluate.gpus; 0 is the CPU.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field, such as train.lr=1e-3.")
    ] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Sent again, it stands for the same job.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job to its end.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
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
            uploaded = _dataset_of(client, prompts, again=idempotency_key is not None)
            document = set_value(document, ["data", "dataset"], uploaded["id"])
        if not isinstance(document.get("data"), dict) or not document["data"].get("dataset"):
            raise BadInput("the job has no dataset: give --prompts FILE, --dataset ID, or data.dataset in the document")
        job = client.create_job(document, idempotency_key)
        if watch:
            follow_job(client, job["id"], output)
        elif output == Output.JSON:
            print_json(job)
        else:
            say(f"{job['id']} {job['status']}; follow it with: eyrie watch {job['id']}")


def _dataset_of(client: EyrieClient, prompts: Path, *, again: bool) -> JsonObject:
    """Upload prompts; where a script may run `again`, take what its first run has uploaded.

    Raises:
        BadInput: a folder, whose dataset cannot be told by its checksum.
    """
    if not again:
        return client.upload_dataset(prompts)
    if prompts.is_dir():
        raise BadInput(
            "--idempotency-key with a folder as --prompts would be another document each time: upload it once "
            "(eyrie datasets upload) and give --dataset"
        )
    return client.find_dataset(prompts) or client.upload_dataset(prompts)


def retry(
    job: JobId,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the new job to its end.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Do a failed or cancelled job again, as a new job that takes over what is finished."""
    with EyrieClient(url) as client:
        again = client.ask(job, "retry")
        if watch:
            follow_job(client, again["id"], output)
        elif output == Output.JSON:
            print_json(again)
        else:
            text = f"{again['id']} {again['status']}, again for {job}; follow it with: eyrie watch {again['id']}"
            say(text)
