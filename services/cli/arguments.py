"""Arguments that several commands have, each completed by the shell with what the gateway has."""

from typing import Annotated

import typer

from services.cli import completion

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of a job.", autocompletion=completion.jobs)]
DatasetId = Annotated[
    str, typer.Argument(metavar="DATASET", help="Id of a dataset.", autocompletion=completion.datasets)
]
DraftId = Annotated[
    str, typer.Argument(metavar="DRAFT", help="Id of a draft, or one of its tags.", autocompletion=completion.drafts)
]
WebhookId = Annotated[
    str, typer.Argument(metavar="WEBHOOK", help="Id of a webhook.", autocompletion=completion.webhooks)
]
PresetOption = Annotated[
    str | None,
    typer.Option("--preset", help="Preset that fills in what is left out.", autocompletion=completion.presets),
]
DatasetOption = Annotated[
    str | None, typer.Option("--dataset", help="Id of an uploaded dataset.", autocompletion=completion.datasets)
]
STAGES = ("prepare", "generate", "capture", "vocab", "train", "evaluate", "publish")
StageOption = Annotated[
    str | None,
    typer.Option(
        "--stage",
        help=f"Only this stage: {', '.join(STAGES)}.",
        autocompletion=lambda: list(STAGES),
    ),
]
