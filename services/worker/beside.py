"""What is done again and again beside a running stage."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from services.worker.run_control import RunControl

END_S = 5.0  # what a step that is under way may still take when the stage has ended


@contextmanager
def beside(control: RunControl, name: str, step: Callable[[], float], wait_s: float = 0.0) -> Iterator[None]:
    """Call `step` after `wait_s`, and again after the seconds that it returns, while the block lasts.

    A thread of its own does it: a store that hangs must not keep the run from renewing its lease, from hearing that it
    shall stop, or from its end.
    """
    end = threading.Event()

    def go_on() -> None:
        wait = wait_s
        while not end.wait(wait):
            wait = step()

    thread = threading.Thread(target=go_on, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        with control.kept_alive():
            thread.join(END_S)
