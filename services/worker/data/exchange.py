"""The folder that verifier and workers share: who waits for a file in it, and who clears away what nobody collected.

The verifier names its files after the request (`X-Request-Id`), which begins with the tag of the attempt that asked.
It writes a file after it has answered, under an flock on `FILE.lock`, which it leaves to the reader.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from shared.errors import ArtifactStoreError, UserError
from shared.verifier_settings import capture_note_name

LOCK_TIMEOUT_S = 120.0
SWEEP_TIMEOUT_S = 10.0
LOCK_POLL_S = 0.01
TAG = re.compile(r"eyrie-(job_[0-9a-z]{20})-(run_[0-9a-z]{20})-")


class BadStates(Exception):
    """A file of hidden states cannot be used; the message says why."""


def request_tag(job_id: str, token: str) -> str:
    """What the ids of all requests of one attempt at a job begin with."""
    return f"eyrie-{job_id}-{token}"


def require_writable(exchange: Path) -> None:
    """Make the folder if need be, and make sure that files can be taken out of it.

    Raises:
        ArtifactStoreError: it cannot be made, or not be written.
    """
    probe = exchange / f".probe-{secrets.token_hex(6)}"
    try:
        exchange.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ArtifactStoreError(
            f"the folder that verifier and workers share cannot be written: {error.strerror or error}",
            where=str(exchange),
            hint="EYRIE_EXCHANGE_ROOT must be a folder that the uid of verifier and workers can write",
        ) from None


def require_layers(exchange: Path, served_model: str, layer_ids: list[int]) -> None:
    """Hold the layers that a job wants against those that the verifier says it captures; it may have said nothing.

    Raises:
        UserError: they differ.
    """
    try:
        captured = json.loads((exchange / capture_note_name(served_model)).read_text(encoding="utf-8"))["layer_ids"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if captured != layer_ids:
        raise UserError(
            f"the verifier captures layers {captured}, the job wants {layer_ids}",
            where="/capture/layer_ids",
            hint="ask for the layers it captures (the final one goes without saying), or start it with "
            f"EYRIE_VERIFIER_LAYER_IDS='{layer_ids}'",
        )


def wait_for_writer(source: Path, timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Return when the verifier has done with `source`, whether or not it left the file.

    Raises:
        TimeoutError: it still holds the lock.
    """
    deadline = time.monotonic() + timeout_s
    try:
        descriptor = os.open(lock_path(source), os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{source.name} was not written within {timeout_s:g} s") from None
                time.sleep(LOCK_POLL_S)
    finally:
        os.close(descriptor)


def take_states(source: Path, target: Path) -> None:
    """Wait until the verifier has written `source`, then move it to `target`, whole.

    Raises:
        BadStates: it is not written in time, or is not there.
    """
    temporary = target.with_name(target.name + ".tmp")
    try:
        wait_for_writer(source)
        shutil.move(source, temporary)  # a rename on one filesystem, else a copy
        os.replace(temporary, target)
    except FileNotFoundError:
        raise BadStates(f"the verifier left no file {source.name}") from None
    except TimeoutError as error:
        raise BadStates(str(error)) from None
    finally:
        lock_path(source).unlink(missing_ok=True)


def drop(source: Path, timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Remove a file that nobody wants, with its lock, once it is written (else it would come after)."""
    with contextlib.suppress(TimeoutError):
        wait_for_writer(source, timeout_s)
    source.unlink(missing_ok=True)
    lock_path(source).unlink(missing_ok=True)


def sweep(exchange: Path, is_leftover: Callable[[str], bool], timeout_s: float = SWEEP_TIMEOUT_S) -> int:
    """Remove the files whose name `is_leftover` says nobody will collect; return how many.

    Args:
        timeout_s: how long to wait, in all, for files that are being written.
    """
    deadline = time.monotonic() + timeout_s
    removed = 0
    for path in sorted(exchange.iterdir()) if exchange.is_dir() else []:
        if is_leftover(path.name):
            if path.name.endswith(".lock"):
                drop(path.with_name(path.name.removesuffix(".lock")), max(0.0, deadline - time.monotonic()))
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def sweep_attempt(exchange: Path, tag: str) -> int:
    """Remove what was written for the requests of one attempt and not collected."""
    return sweep(exchange, lambda name: f"{tag}-" in name)


def sweep_dead_runs(exchange: Path, live_token: Callable[[str], str | None]) -> int:
    """Remove what was written for runs that have ended, however they ended.

    Args:
        live_token: the token of a job's live run, if there is one.
    """
    known: dict[str, str | None] = {}

    def is_leftover(name: str) -> bool:
        found = TAG.search(name)
        if found is None:
            return False
        job_id, token = found.groups()
        if job_id not in known:
            known[job_id] = live_token(job_id)
        return known[job_id] != token

    return sweep(exchange, is_leftover)


def lock_path(source: Path) -> Path:
    """Where the verifier's lock on `source` lies."""
    return source.with_name(f"{source.name}.lock")
