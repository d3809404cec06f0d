"""A service of the local stack as a process: whether it lives, how it ends with all that it started, and its port."""

import errno
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

STOP_TIMEOUT_S = 90.0


class StackError(Exception):
    """A service could not be started or found; the message says which, why and what to do."""


@dataclass
class Service:
    """A process that the stack started; `created` tells it from a later one with the same pid."""

    name: str
    pid: int
    created: float
    log: str


def require_alive(service: Service, hint: str = "") -> None:
    """Make sure that a service runs.

    Raises:
        StackError: it has ended; the message has the last line of its log, and `hint` at its end.
    """
    process = find_process(service)
    if process is None or process.status() == psutil.STATUS_ZOMBIE:
        lines = Path(service.log).read_text(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else "it printed nothing"
        raise StackError(f"{service.name} ended: {reason} (log: {service.log}){hint}")


def find_process(service: Service) -> psutil.Process | None:
    """The service's process; None where it has ended, whoever has its pid now."""
    try:
        process = psutil.Process(service.pid)
        return process if abs(process.create_time() - service.created) < 1 else None
    except psutil.NoSuchProcess:
        return None


def _session(service: Service) -> list[psutil.Process]:
    """What lives in the session that the service was started as the leader of."""
    if psutil.pid_exists(service.pid) and find_process(service) is None:
        return []  # a later process has its pid
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == service.pid and process.create_time() > service.created - 1:
                found.append(process)
    return found


def end_service(service: Service) -> None:
    """End a service and all that it has started: SIGTERM first, SIGKILL for what stays."""
    process = find_process(service)
    members = _session(service)
    if process is None:  # it was killed, and left its children behind
        first = members
    else:
        first = [process]
        with suppress(psutil.NoSuchProcess):
            members += process.children(recursive=True)
    family = list({member.pid: member for member in [*first, *members]}.values())
    for one in first:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGTERM)
    psutil.wait_procs(first, timeout=STOP_TIMEOUT_S)
    _, alive = psutil.wait_procs(family, timeout=5)
    for left in alive:
        with suppress(psutil.NoSuchProcess):
            left.kill()
    psutil.wait_procs(alive, timeout=5)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A block that neither Ctrl-C nor SIGTERM breaks off."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def usable_port(name: str, port: int | None, variable: str = "") -> int:
    """The port, if nobody listens on it; a free one for None.

    Raises:
        StackError: it is in use; `variable` is how to choose another.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or 0))
        except OverflowError:
            raise StackError(f"{variable} is {port}, which is no port: choose one from 1 to 65535") from None
        except OSError as error:
            raise StackError(
                f"the {name}'s port {port} is in use: stop what listens there, or choose another with {variable}=..."
                if error.errno == errno.EADDRINUSE
                else f"the {name} cannot have port {port}: {error.strerror}"
            ) from None
        return int(probe.getsockname()[1])


def asked_port(variable: str, default: int) -> int:
    """The port that a variable of the environment asks for.

    Raises:
        StackError: it is no port.
    """
    value = os.environ.get(variable) or str(default)
    if not (value.isascii() and value.isdigit()):
        raise StackError(f"{variable} is {value!r}, which is no port: choose one from 1 to 65535")
    return int(value)
