"""Starts the verifier service as a process of this worker, waits until it answers, and ends it again."""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import httpx

from services.worker.loading_log import LoadingLog, LoadingState
from services.worker.supervision import GuardedProcess, marked_environment
from shared.errors import EyrieError, UserError, VerifierError
from shared.job_store import Fenced
from shared.verifier_settings import VerifierSettings

MODULE_VARIABLE = "EYRIE_VERIFIER_MODULE"  # set by tests alone, which bring a light stand-in for vLLM
MODULE = "services.verifier"
POLL_S = 0.5
STOP_GRACE_S = 20.0
BAD_INPUT = 2
LOG_TAIL_BYTES = 64 * 1024


@contextmanager
def running_verifier(
    settings: VerifierSettings,
    *,
    mark: str,
    log_path: Path,
    timeout_s: float,
    tick: Callable[[], None] = lambda: None,
    loading: Callable[[LoadingState], None] = lambda _: None,
    ending: Callable[[], AbstractContextManager[None]] = nullcontext,
    environment: Mapping[str, str] | None = None,
    locks: Sequence[int] = (),
) -> Iterator[str]:
    """Serve a verifier for the length of a block.

    Args:
        settings: how; host and port are chosen here (loopback, a free one).
        mark: token that its processes carry, below the run's own.
        log_path: where vLLM's output goes.
        timeout_s: seconds until it must answer.
        tick: called while waiting; may raise to give up.
        loading: told how far it is, whenever that changes.
        ending: a context in which its processes are ended, which takes their grace.
        environment: further variables, such as CUDA_VISIBLE_DEVICES.
        locks: descriptors that its processes inherit; those of its GPUs.

    Yields:
        Its base URL, without /v1.

    Raises:
        UserError: the verifier service refused the settings.
        VerifierError: vLLM ended or stayed silent; the message holds its last error line.
    """
    settings = settings.model_copy(update={"host": "127.0.0.1", "port": free_port()})
    url = f"http://{settings.host}:{settings.port}"
    text = {"EYRIE_LOG_FORMAT": "text"}  # this log is read by people, and by `LoadingLog`
    variables = marked_environment(mark, {**settings.to_environ(), **text, **(environment or {})})
    log_path.parent.mkdir(parents=True, exist_ok=True)
    said = LoadingLog(log_path)
    with log_path.open("ab") as log_file:
        verifier = GuardedProcess.start(
            [sys.executable, "-m", os.environ.get(MODULE_VARIABLE, MODULE)],
            environment=variables,
            output=log_file,
            grace_s=STOP_GRACE_S,
            keep=locks,
        )
    grace_s = STOP_GRACE_S
    try:
        _wait_until_healthy(verifier, url, log_path, timeout_s, lambda: _look(tick, said, loading))
        yield url
    except Fenced:
        grace_s = 0.0
        raise
    finally:
        with ending():
            verifier.end(grace_s)


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(
    verifier: GuardedProcess, url: str, log_path: Path, timeout_s: float, tick: Callable[[], None]
) -> None:
    deadline = time.monotonic() + timeout_s
    with httpx.Client(timeout=5.0, trust_env=False) as client:
        while True:
            tick()
            if (returncode := verifier.process.poll()) is not None:
                raise _start_error(returncode, log_path)
            try:
                if client.get(f"{url}/health").status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                raise VerifierError(
                    f"the verifier did not answer within {timeout_s:g} s",
                    where=str(log_path),
                    hint="look into this log, or give it more time",
                )
            time.sleep(POLL_S)


def _look(tick: Callable[[], None], said: LoadingLog, loading: Callable[[LoadingState], None]) -> None:
    tick()
    said.tell(loading)


def _start_error(returncode: int, log_path: Path) -> EyrieError:
    with log_path.open("rb") as file:
        file.seek(max(0, log_path.stat().st_size - LOG_TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error" in line] or lines or ["it printed nothing"]
    if returncode == BAD_INPUT:
        return UserError(lines[-1] if lines else errors[-1], where="verifier")
    return VerifierError(
        f"the verifier ended with code {returncode} before it answered: {errors[-1][-500:]}",
        where=str(log_path),
        hint="look into this log",
    )
