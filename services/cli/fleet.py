"""Commands on what the service runs on: `eyrie workers|gpus|verifiers`, each with an id for one of them."""

from collections import Counter
from typing import Annotated, Any

import typer
import yaml

from services.cli import completion
from services.cli.client import DEFAULT_URL, EyrieClient, JsonObject
from services.cli.options import Output, OutputOption, UrlOption, console, print_items, print_json
from shared.sizes import human_bytes

MOST = 10_000
WORKER_COLUMNS = {
    "ID": "id",
    "HOST": "host",
    "PID": "pid",
    "VERSION": "version",
    "GPUS": "gpus",
    "JOB": "job_id",
    "STAGE": "stage",
    "STARTED": "started_at",
    "SEEN": "seen_at",
}
GPU_COLUMNS = {
    "ID": "id",
    "NAME": "name",
    "MEMORY": "memory",
    "STATUS": "status",
    "JOB": "holder.job_id",
    "STAGE": "holder.stage",
    "WORKER": "holder.worker",
    "HOST": "holder.host",
    "SINCE": "holder.since",
}
VERIFIER_COLUMNS = {
    "ID": "id",
    "KIND": "kind",
    "MODEL": "model",
    "STATUS": "status",
    "URL": "url",
    "LAYERS": "num_layers",
    "HIDDEN": "hidden_size",
    "LENGTH": "max_model_len",
    "CAPTURE": "capture.modes",
    "CAPTURED LAYERS": "capture.layer_ids",
    "JOB": "job_id",
    "WHY": "status_message",
}
Worker = Annotated[
    str | None,
    typer.Argument(metavar="WORKER", help="Id of one; absent: all.", autocompletion=completion.fleet("workers")),
]
Gpu = Annotated[
    str | None, typer.Argument(metavar="GPU", help="Id of one; absent: all.", autocompletion=completion.fleet("gpus"))
]
Verifier = Annotated[
    str | None,
    typer.Argument(metavar="VERIFIER", help="Id of one; absent: all.", autocompletion=completion.fleet("verifiers")),
]


def workers(worker: Worker = None, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show the workers, and what each does."""
    _show("workers", worker, WORKER_COLUMNS, url, output)


def gpus(gpu: Gpu = None, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show the GPUs, and who holds each."""
    _show("gpus", gpu, GPU_COLUMNS, url, output)


def verifiers(verifier: Verifier = None, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show the verifiers: the model served, its layers, and which of them are captured how."""
    _show("verifiers", verifier, VERIFIER_COLUMNS, url, output)


def _show(collection: str, entry: str | None, columns: dict[str, str], url: str, output: Output) -> None:
    with EyrieClient(url) as client:
        found: Any = client.get_fleet(collection, entry) if entry else client.list_fleet(collection, MOST)
    if output == Output.JSON:
        print_json(found)
    elif entry:
        console().print(document_text(found), markup=False, highlight=False, soft_wrap=True, end="")
    else:
        print_items([_readable(item) for item in found], columns, f"no {collection}", output)


def _readable(item: JsonObject) -> JsonObject:
    """An entry with its memory in readable units, and its GPUs counted by name where it has them in full."""
    memory, gpus = item.get("memory_bytes"), item.get("gpus") or []
    counted = Counter(gpu.get("name") or gpu["id"] if isinstance(gpu, dict) else gpu for gpu in gpus)
    shown = [f"{count} × {name}" if count > 1 else str(name) for name, count in counted.items()]
    return {**item, "memory": human_bytes(memory) if memory is not None else None, "gpus": shown}


def document_text(document: Any) -> str:
    """A document for people: YAML, in its own order."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
