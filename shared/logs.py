"""Logs of all services: lines of text, or with `EYRIE_LOG_FORMAT=json` one JSON object a line, on standard error.

A JSON line has `time`, `level`, `logger`, `service`, `message`; `job`, `attempt` and `stage` where they are known, from
`log_context` or from a job's id among the message's arguments; and `exception`. Neither form shows passwords in URLs,
bearer tokens, API keys or signing secrets.
"""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from pythonjsonlogger.json import JsonFormatter

from shared.ids import is_id

LogFormat = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
RENAMED = {"asctime": "time", "levelname": "level", "name": "logger", "exc_info": "exception"}
FIELDS = ("asctime", "levelname", "name", "message")
CHATTY = ("botocore", "s3transfer")
CONTEXT_FIELDS = ("job", "attempt", "stage")
SECRETS = (
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@'\"]*@", re.IGNORECASE), r"\1***@"),
    (re.compile(r"(\bBearer\s+)[^\s'\"]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"\b(eyk_|whsec_)[A-Za-z0-9_+/=-]+"), r"\1***"),
)

_context: ContextVar[dict[str, Any]] = ContextVar("eyrie_log_context", default={})  # noqa: B039 - never changed in place


def set_up_logging(service: str, form: LogFormat) -> None:
    """Send everything from INFO up to standard error; to be called once, when a service starts."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(service) if form == "json" else _TextLines(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def log_context(**fields: Any) -> Iterator[None]:
    """Put fields (`CONTEXT_FIELDS`) on all lines of a block, beside those of the blocks around it."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def without_secrets(text: str) -> str:
    """A text with what looks like a secret blotted out."""
    for pattern, replacement in SECRETS:
        text = pattern.sub(replacement, text)
    return text


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


class JsonLines(JsonFormatter):
    """One record as one line of JSON; `services/verifier/json_logging.json` names it to vLLM."""

    def __init__(self, service: str) -> None:
        super().__init__(
            list(FIELDS), rename_fields=RENAMED, static_fields={"service": service}, datefmt="%Y-%m-%dT%H:%M:%S%z"
        )

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        super().add_fields(log_data, record, message_dict)
        known = _context.get()
        if "job" not in known and (job := _job_of(record)) is not None:
            known = {"job": job, **known}
        log_data.update(known)

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


def _job_of(record: logging.LogRecord) -> str | None:
    arguments = record.args if isinstance(record.args, tuple) else ()
    return next((part for part in arguments if isinstance(part, str) and is_id(part, "job")), None)
