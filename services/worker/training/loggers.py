"""speculators' metric loggers in our runs: one that fails ends no training.

The library sets its handlers up itself (`RunConfig.integrations`); this surrounds them.
"""

import logging
import os
from collections.abc import Callable
from typing import Any

from speculators.train import logger as library

from services.worker.integrations import VARIABLES, worker_variables
from services.worker.training.events import EventWriter

HANDLERS: tuple[Any, ...] = (
    library.TensorBoardHandler,
    library.WandbHandler,  # Trackio's is one of these
    library.MLFlowHandler,
)


def install(writer: EventWriter) -> None:
    """Have a logger that raises fall silent with a warning: its server may be away, and hours of training go on."""
    for handler in HANDLERS:
        handler.emit = guarded(handler.emit, writer)


def guarded(emit: Callable[..., None], writer: EventWriter) -> Callable[..., None]:
    """A handler's `emit` that raises nothing."""

    def quiet(handler: Any, record: logging.LogRecord) -> None:
        if getattr(handler, "failed", False):
            return
        try:
            emit(handler, record)
        except Exception as error:
            handler.failed = True
            name = type(handler).__name__.removesuffix("Handler")
            why = without_credentials(f"{type(error).__name__}: {error}")[:500]
            writer.event("warning", message=f"the logger {name} failed and is left out from here on: {why}")

    return quiet


def without_credentials(text: str) -> str:
    """A library's words without any value that the worker gave it."""
    given = worker_variables(VARIABLES, os.environ).values()
    for value in sorted(given, key=len, reverse=True):
        text = text.replace(value, "***") if len(value) > 3 else text
    return text
