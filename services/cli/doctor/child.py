"""Asks a probe in a process of its own, for a limited time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

PROBES = "services.cli.doctor.probes"
TAIL_LINES = 3
END_S = 2.0
QUIET = {
    "HF_HUB_OFFLINE": "1",  # nothing is downloaded
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class ProbeFailed(Exception):
    """The probe ended without an answer; the text says how."""


def ask(probe: str, timeout_s: float) -> dict[str, Any]:
    """The answer of a probe.

    Raises:
        ProbeFailed: it crashed, or took too long; then it and all that it started were killed.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", f"{PROBES}.{probe}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **QUIET},
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # what hangs in a driver does not even die
            process.wait(END_S)
        raise ProbeFailed(f"did not answer within {timeout_s:g} s and was ended") from None
    try:
        answer = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        said = " / ".join(errors.strip().splitlines()[-TAIL_LINES:]) or "it printed nothing"
        raise ProbeFailed(f"ended with code {process.returncode}: {said}") from None
    if not isinstance(answer, dict):
        raise ProbeFailed("gave an answer of another form")
    return answer
