"""A check and its finding, and running checks side by side: none waits for another, and none is waited for too long.

A finding is `ok`; `info`, for what is not there and need not be; `warning`, for what works and may disappoint; or
`problem`, which says what to do about it. Only problems change the exit code.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "info", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        summary: one line for people.
        hint: what to do about it.
        details: the same and more, for programs.
    """

    status: Status
    summary: str
    hint: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def shown(self, name: str) -> dict[str, Any]:
        """The finding as JSON."""
        return {"name": name, **asdict(self)}


Check = Callable[[], Finding]


def run_checks(checks: Mapping[str, Check], timeout_s: float) -> dict[str, Finding]:
    """Run checks at the same time; findings come in the order of the checks.

    A check that does not end in time is a problem. It is left behind in a daemon thread: what hangs in the kernel, such
    as a network volume that is gone, cannot be ended.
    """
    answers: queue.SimpleQueue[tuple[str, Finding]] = queue.SimpleQueue()
    for name, check in checks.items():
        threading.Thread(target=_run, args=(name, check, answers), daemon=True).start()
    found: dict[str, Finding] = {}
    deadline = time.monotonic() + timeout_s
    while len(found) < len(checks) and (left := deadline - time.monotonic()) > 0:
        try:
            name, finding = answers.get(timeout=left)
        except queue.Empty:
            break
        found[name] = finding
    late = Finding("problem", f"no answer within {timeout_s:g} s", "give --timeout more seconds; if it stays, it hangs")
    return {name: found.get(name, late) for name in checks}


def _run(name: str, check: Check, answers: "queue.SimpleQueue[tuple[str, Finding]]") -> None:
    try:
        finding = check()
    except Exception as error:
        finding = Finding("problem", f"the check itself failed: {type(error).__name__}: {error}", "report this defect")
    answers.put((name, finding))
