"""The guard of a process tree: `python -m services.worker.process_guard GRACE_S DESCRIPTORS COMMAND...`.

Runs a command and stays until everything that it started is gone, wherever it went: the kernel makes the guard the
parent of every orphan below it (child subreaper). It ends the tree when the command ends, when its own parent dies, and
on SIGTERM: SIGTERM to the command, after the grace SIGKILL to all. On SIGQUIT it kills at once. Locks that it was given
(`DESCRIPTORS`, by number, with commas) are held by it and by the command.

It ends as the command ended: with its code, or by its signal.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil

from services.worker.supervision import PARENT_VARIABLE, die_with_parent, is_alive, kill_all

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LEFTOVER_GRACE_S = 5.0
POLL_S = 0.1
FAILED_TO_START = 127


class Guard:
    """One command and its tree."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.stopping = self.killing = False
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._woken, writer = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGQUIT, self._kill)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it wakes the loop

    def run(self, command: list[str], keep: tuple[int, ...]) -> int:
        """Run the command to its end and end what is left of its tree; returns its status as `Popen` does."""
        die_with_parent()
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        child = subprocess.Popen(command, env=environment, pass_fds=keep)
        deadline = None
        while child.poll() is None and not self.killing:
            if self.stopping and deadline is None:
                child.terminate()
                deadline = time.monotonic() + self.grace_s
            if deadline is not None and time.monotonic() > deadline:
                break
            self._sleep(None if deadline is None else POLL_S)
            self._reap_orphans(child.pid)
        self._end_rest(child)
        return child.wait()

    def _end_rest(self, child: "subprocess.Popen[bytes]") -> None:
        """End what is left: asked first, unless the command itself had to be killed."""
        if child.poll() is not None and not self.killing:
            for process in _below():
                with contextlib.suppress(psutil.Error):
                    process.terminate()
            deadline = time.monotonic() + min(self.grace_s, LEFTOVER_GRACE_S)
            while self._left(child) and time.monotonic() < deadline and not self.killing:
                self._sleep(POLL_S)
        while self._left(child):
            kill_all(lambda: self._left(child))

    def _left(self, child: "subprocess.Popen[bytes]") -> list[psutil.Process]:
        self._reap_orphans(child.pid)
        return _below()

    def _reap_orphans(self, command: int) -> None:
        """Collect the ends of those who lost their parent; the command's own is for `Popen` to collect."""
        for process in psutil.Process().children():
            if process.pid != command and not is_alive(process):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)

    def _sleep(self, seconds: float | None) -> None:
        """Wait for a signal, or so long."""
        if select.select([self._woken], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True

    def _kill(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = self.killing = True


def main(arguments: list[str]) -> int:
    """Guard `arguments[2:]`; the grace comes first, then the descriptors to keep."""
    guard = Guard(float(arguments[0]))
    keep = tuple(int(number) for number in arguments[1].split(",") if number)
    try:
        status = guard.run(arguments[2:], keep)
    except OSError as error:
        print(f"error: {arguments[2]} cannot be run: {error.strerror}", file=sys.stderr)
        return FAILED_TO_START
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler to take away
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _below() -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if is_alive(process)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
