"""Makes .venv from locks/cpu.txt; `make install` calls it. Needs CPython 3.11 or later, and pip.

    python3.11 tools/install.py

In goes the lock, out comes .venv with a marker (.venv/.installed) that is written last: without it
the environment counts as half made, and the next call starts anew. pip's own configuration (index,
proxy, certificates, local wheels) holds throughout. What pip says is in .venv/install.log.
"""

import fcntl
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
MARKER = VENV / ".installed"
LOCK = ROOT / "locks" / "cpu.txt"
TORCH = ROOT / "locks" / "torch-cpu.txt"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

UNCOMPILED = (
    r"/tests?/|/torch/testing/|/networkx/algorithms/"
    r"|/transformers/models/(?!__|auto/|deepseek|kimi|llama|qwen)"
)
TRIES = 3
NETWORK_TROUBLE = re.compile(
    r"timed? ?out|Connection(?:Error| ?reset| ?refused| ?broken| ?aborted)|NewConnectionError"
    r"|IncompleteRead|ProtocolError|Temporary failure|Max retries|Network is unreachable"
    r"|HTTP error 5\d\d|5\d\d (?:Server Error|Service|Bad Gateway|Gateway)|RemoteDisconnected",
    re.IGNORECASE,
)
NOT_FOUND = "No matching distribution found"
REASONS = (
    (r"No space left on device", "the disk is full: the environment takes about 3 GB"),
    (
        r"DO NOT MATCH THE HASHES|MISMATCHED HASH",
        "a package is not the one that was locked: empty pip's cache, look at the index it uses",
    ),
    (NOT_FOUND, "no index within reach has this version for this Python and this machine"),
    (r"CERTIFICATE_VERIFY_FAILED", "a certificate is not trusted: set PIP_CERT or `pip config`"),
    (r"Failed building|error: command .*(?:gcc|cc)", "a package needs a C compiler and make"),
    (NETWORK_TROUBLE.pattern, "the package index cannot be reached"),
    (r"ensurepip", "this Python cannot make environments: install its `venv` package"),
)


class InstallError(Exception):
    """A step failed; the message says which."""


def main() -> int:
    if problem := unfit_machine():
        print(f"error: {problem}", file=sys.stderr)
        return 1
    started = time.monotonic()
    try:
        with alone():
            install()
    except InstallError as error:
        report(error)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the next `make install` goes on", file=sys.stderr)
        return 130
    print(f"installed in {time.monotonic() - started:.0f} s: .venv", flush=True)
    return 0


def unfit_machine() -> str | None:
    """Why this Python or machine cannot hold the environment; None if it can."""
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may run this file
        return f"Python 3.11 or later is needed, this is {platform.python_version()}: set PYTHON"
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return (
            "locks/cpu.txt covers Linux on x86_64 and aarch64, this is "
            f"{sys.platform} on {platform.machine()}: use a Linux machine of these kinds"
        )
    return None


@contextmanager
def alone() -> Iterator[None]:
    """Only one install at a time in one checkout; a second one waits."""
    with LOCK.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another install is under way, waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def install() -> None:
    """The steps, in order; a step that is done already is passed over."""
    wanted = f"python {platform.python_version()}\nlock {digest(LOCK)}\n"
    had = MARKER.read_text() if MARKER.exists() else ""
    if had.splitlines()[:1] != wanted.splitlines()[:1]:
        say(f"making .venv with Python {platform.python_version()}")
        make_venv()
    if had != wanted:
        MARKER.unlink(missing_ok=True)
        install_torch()
        count = len(re.findall(r"(?m)^[A-Za-z0-9].*==", LOCK.read_text()))
        say(f"installing {count} packages of locks/cpu.txt; a few minutes (.venv/install.log)")
        pip("install", *LOCKED, "-r", str(LOCK))
        byte_compile()
    say("installing eyrie itself")
    # compat: one .pth line, so that new packages and `python -m tools...` are found at once.
    pip(
        *("install", "--no-deps", "--no-build-isolation", "--no-index", "--editable", str(ROOT)),
        *("--config-settings", "editable_mode=compat"),
    )
    MARKER.write_text(wanted)


LOCKED = ("--no-deps", "--require-hashes", "--no-compile", "--progress-bar", "off")


def make_venv() -> None:
    """An empty .venv; whatever was in it is gone."""
    if VENV.is_symlink():
        raise InstallError(".venv is a link to elsewhere: remove it first")
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir()
    run([sys.executable, "-m", "venv", str(VENV)], "making .venv")


def install_torch() -> None:
    """torch's CPU build: from where pip looks anyway, else from PyTorch's own index."""
    say("installing torch (CPU build)")
    try:
        pip("install", *LOCKED, "-r", str(TORCH))
    except InstallError:
        if NOT_FOUND not in tail(40):
            raise
        say(f"not in the configured index: taking it from {TORCH_INDEX}")
        pip("install", *LOCKED, "--extra-index-url", TORCH_INDEX, "-r", str(TORCH))


def byte_compile() -> None:
    """On all cores at once, which pip does not do: the first start of vLLM is 20 s faster for it.

    Left out: tests, and the model files of transformers that a run does not touch."""
    say("compiling the packages to bytecode")
    (packages,) = VENV.glob("lib/python3.*/site-packages")
    command = [str(PYTHON), "-m", "compileall", "-q", "-j", "0", "-x", UNCOMPILED, str(packages)]
    with LOG.open("a") as log:  # some files are for other versions of Python: no failure
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)


def pip(*arguments: str) -> None:
    """Runs the environment's pip; again after network trouble, TRIES times in all."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    for attempt in range(1, TRIES + 1):
        try:
            run(command, f"pip {arguments[0]}")
        except InstallError:
            if attempt == TRIES or not NETWORK_TROUBLE.search(tail(40)):
                raise
            pause = 5 * attempt
            say(f"network trouble, trying again in {pause} s ({attempt} of {TRIES} failed)")
            time.sleep(pause)
        else:
            return


def run(command: list[str], step: str) -> None:
    """Runs one command with its output in the log; raises InstallError."""
    with LOG.open("a") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        log.flush()
        done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise InstallError(f"{step} failed (exit status {done.returncode})")


def report(error: InstallError) -> None:
    """The end of the log, the failed step, and what is known to cause it."""
    end = tail(25)
    print(end, file=sys.stderr)
    print(f"error: {error}", file=sys.stderr)
    for pattern, reason in REASONS:
        if re.search(pattern, end, re.IGNORECASE):
            print(f"likely because: {reason}", file=sys.stderr)
            break
    print(f"the whole log: {LOG.relative_to(ROOT)}", file=sys.stderr)


def tail(lines: int) -> str:
    """The log's last lines, since the last command at most."""
    text = LOG.read_text(errors="replace") if LOG.exists() else ""
    return "\n".join(text[text.rfind("\n$ ") + 1 :].splitlines()[-lines:])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def say(text: str) -> None:
    print(f"install: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
