"""How far a verifier is while it loads, read from what vLLM prints: the only place where it says so.

The sentences are those of vLLM 0.32. One that is worded anew changes what people see, and nothing else.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SHARDS = re.compile(r"Loading .*checkpoint shards.*?(\d+)/(\d+) \[")
GRAPHS = re.compile(r"Capturing CUDA graphs.*?(\d+)%")
PHASES = {
    "Starting to load model": "loads the weights",
    "Loading drafter model": "loads its speculative part",
    "Loading weights took": "has loaded the weights and warms up",
    "Dynamo bytecode transform time": "compiles",
    "Compiling a graph": "compiles",
    "init engine (profile": "opens its port",
}
MOST_BYTES = 1 << 20  # read at a time; what is older is not worth reading


@dataclass(frozen=True)
class LoadingState:
    """What a verifier is doing before it answers.

    Attributes:
        loaded: part of the weights' files that are read, while they are.
    """

    message: str
    loaded: float | None = None


class LoadingLog:
    """A verifier's log from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = path.stat().st_size if path.exists() else 0
        self._rest = ""
        self._told: LoadingState | None = None
        self._state = LoadingState("starts vLLM")

    def tell(self, listener: Callable[[LoadingState], None]) -> None:
        """Call `listener` if something has changed since the last time."""
        state = self.look()
        if state != self._told:
            self._told = state
            listener(state)

    def look(self) -> LoadingState:
        """What the log says by now."""
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(self._read, size - MOST_BYTES))
            text = self._rest + file.read().decode(errors="replace")
            self._read = file.tell()
        *lines, self._rest = re.split(r"[\r\n]", text)
        for line in lines:
            self._state = _state(line) or self._state
        return self._state


def _state(line: str) -> LoadingState | None:
    if found := SHARDS.search(line):
        done, total = int(found[1]), int(found[2])
        return LoadingState(f"has loaded {done} of {total} files of weights", done / total if total else None)
    if found := GRAPHS.search(line):
        return LoadingState(f"captures CUDA graphs, {found[1]} %")
    return next((LoadingState(message) for sign, message in PHASES.items() if sign in line), None)
