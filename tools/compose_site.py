"""A site of its own for `make compose-test`: a clone's files, secrets, a base image, and the commands to use them.

Everything lies in a temporary folder and has names of this run; `remove` takes it all away again. Standard library
only: a machine needs Docker, git and Python for it, and debootstrap (as root) where it is given no base image.
"""

import ast
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("gateway", "worker", "verifier")
FAKED_GPUS = "fake-0,fake-1,fake-2,fake-3"
OLDEST_COMPOSE = (2, 24)
DEBIAN = "bookworm"
BASE_PACKAGES = "ca-certificates,libnuma1,python3,python3-pip,python3-venv"
BASE_EXCESS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt/lists", "var/cache/apt")
POLL_S = 1.0


class Failed(Exception):
    """Something is not as it must be; the message says what."""


class Site:
    """One run's project.

    Args:
        base_image: what images are built from; None: Debian, by debootstrap.
        build_network: `host` or `default`: what the build's steps reach the package index through.
    """

    def __init__(self, base_image: str | None, build_network: str) -> None:
        self.name = f"eyrie-test-{os.getpid()}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))  # its owner's alone, as the secrets need it
        self.context = self.folder / "clone"
        self.base_image = base_image or f"{self.name}-base:{DEBIAN}"
        self.makes_base = base_image is None
        self.port = free_port()
        self.variables = {
            "COMPOSE_PROFILES": "cpu",
            "EYRIE_BASE_IMAGE": self.base_image,
            "EYRIE_BUILD_NETWORK": build_network,
            "EYRIE_GPUS": FAKED_GPUS,
            "EYRIE_IMAGE_PREFIX": self.name,
            "EYRIE_PUBLISH": f"127.0.0.1:{self.port}",
            "EYRIE_REDIS_IMAGE": f"{self.name}-redis:test",
            "EYRIE_TAG": "test",
        }

    @property
    def images(self) -> list[str]:
        """What is built."""
        return [self.variables["EYRIE_REDIS_IMAGE"], *(f"{self.name}-{service}:test" for service in SERVICES)]

    def prepare(self) -> None:
        """Lay out a clone with its secrets, and what the build needs to reach the package index as pip does here."""
        listing = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
        for name in filter(None, listing.split("\0")):
            if (ROOT / name).is_file():
                (self.context / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.context / name)
        self.variables["EYRIE_REVISION"] = run(["git", "rev-parse", "HEAD"], cwd=ROOT).strip()
        run(["sh", "docker/secrets.sh"], cwd=self.context)
        self.variables |= self._index_settings()

    def make_base(self) -> None:
        """Make the base image by debootstrap, where none was given."""
        if not self.makes_base:
            return
        if os.geteuid() != 0 or not shutil.which("debootstrap"):
            raise Failed("no base image: give one (--base-image), or run this as root with debootstrap installed")
        root = self.folder / "base"
        command = ["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", DEBIAN, str(root)]
        run(command, log=self.folder / "debootstrap.log", timeout_s=900)
        for excess in BASE_EXCESS:
            shutil.rmtree(root / excess, ignore_errors=True)
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(
                ["docker", "import", "-", self.base_image], stdin=tar.stdout, check=True, capture_output=True
            )
        shutil.rmtree(root)

    def build(self) -> None:
        """Build all images, Redis's as well, which so needs no registry."""
        redis = self.variables["EYRIE_REDIS_IMAGE"]
        arguments = ["--build-arg", f"BASE_IMAGE={self.base_image}", "--network", self.variables["EYRIE_BUILD_NETWORK"]]
        command = ["docker", "build", "-f", "docker/redis.Dockerfile", "-t", redis, *arguments, "."]
        run(command, cwd=self.context, env={"DOCKER_BUILDKIT": "1"}, log=self.folder / "build.log", timeout_s=900)
        for service in ("gateway", "verifier", "worker"):  # one by one: the worker's shares the verifier's layers
            self.compose("build", "--progress", "plain", service, log=self.folder / "build.log", timeout_s=3600)

    def compose(self, *arguments: str, log: Path | None = None, timeout_s: float = 600) -> str:
        """Run `docker compose` on this project."""
        command = ["docker", "compose", "--project-name", self.name, "--env-file", "/dev/null", *arguments]
        return run(command, cwd=self.context, env=self.variables, log=log, timeout_s=timeout_s)

    def containers(self, service: str) -> list[dict[str, Any]]:
        """What Docker knows of a service's running containers."""
        ids = self.compose("ps", "--quiet", service).split()
        return json.loads(run(["docker", "inspect", *ids])) if ids else []

    def execute(self, container: Mapping[str, Any], *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container, whatever comes of it."""
        whole = ["docker", "exec", str(container["Id"]), *command]
        return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=120)

    def secret(self, name: str) -> str:
        return (self.context / "secrets" / name).read_text()

    def request(
        self, method: str, path: str, body: Any = None, *, key: str | None = "", data: bytes | None = None
    ) -> tuple[int, Any]:
        """Ask the gateway where it is published; status and document.

        Args:
            key: absent: the site's; None: none.
        """
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        if key is not None:
            request.add_header("Authorization", f"Bearer {key or self.secret('eyrie-api-key')}")
        if body is not None:
            data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/x-ndjson" if body is None else "application/json")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, data, timeout=60) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        return status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode(errors="replace")

    def get(self, path: str) -> Any:
        """A document of the API; raises Failed for anything but 200."""
        status, document = self.request("GET", path)
        if status != 200:
            raise Failed(f"GET {path}: {status}: {document}")
        return document

    def image_mib(self) -> dict[str, int]:
        """Size of each image, shared layers counted in each."""
        sizes = {}
        for image in [*self.images, *([self.base_image] if self.makes_base else [])]:
            size = run(["docker", "image", "inspect", "--format", "{{.Size}}", image])
            sizes[image.partition(":")[0].removeprefix(f"{self.name}-")] = round(int(size) / 1024**2)
        return sizes

    def logs(self, tail: int = 40) -> str:
        """The end of what the services said."""
        try:
            return self.compose("logs", "--no-color", "--tail", str(tail))
        except (Failed, OSError) as error:
            return str(error)

    def remove(self, *, keep_images: bool) -> None:
        """Take away containers, networks, volumes, images and files; raises Failed when something stays."""
        try:
            left = self._left_after_down() if self.context.exists() else ""
            if not keep_images:
                for image in [*self.images, *([self.base_image] if self.makes_base else [])]:
                    subprocess.run(["docker", "image", "rm", image], capture_output=True, check=False)
        finally:
            shutil.rmtree(self.folder)
        if left:
            raise Failed(f"containers, volumes or networks are left: {left}")

    def _left_after_down(self) -> str:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "20")
        ours = f"label=com.docker.compose.project={self.name}"
        lists = (["ps", "--all"], ["volume", "ls"], ["network", "ls"])
        return " ".join(run(["docker", *what, "--quiet", "--filter", ours]) for what in lists).strip()

    def _index_settings(self) -> dict[str, str]:
        """pip's own settings as a pip.conf for the build, its certificates, and local wheels of what is locked."""
        known = pip_settings()
        lines = ["[global]"]
        for name in ("index-url", "extra-index-url", "trusted-host", "timeout"):
            values = [value for value in known.get(name, "").split() if not value.startswith("file:")]
            if values:
                lines.append(f"{name} = {' '.join(values)}")
        settings = {"EYRIE_PIP_CONF": str(self.folder / "pip.conf")}
        if (certificates := known.get("cert", "")) and Path(certificates).is_file():
            lines.append("cert = /run/secrets/build_ca")
            settings["EYRIE_BUILD_CA"] = certificates
        (self.folder / "pip.conf").write_text("\n".join(lines) + "\n")
        version = (ROOT / "locks" / "torch-cpu.txt").read_text().partition("torch==")[2].split()[0]
        for folder in known.get("find-links", "").split():
            for wheel in Path(folder).glob(f"torch-{version}-*.whl"):
                shutil.copy(wheel, self.context / "docker" / "wheels")
        return settings


def pip_settings() -> dict[str, str]:
    """Settings of pip on this machine by name; those of the environment win, and are all where there is no pip."""
    if importlib.util.find_spec("pip") is None:
        variables = {name.removeprefix("PIP_"): value for name, value in os.environ.items() if name.startswith("PIP_")}
        return {name.lower().replace("_", "-"): value for name, value in variables.items()}
    found: dict[str, str] = {}
    lines = run([sys.executable, "-m", "pip", "config", "list"]).splitlines()
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    return found


def run(
    command: list[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    timeout_s: float = 120,
) -> str:
    """Run a command; its output, or Failed with the end of it. Variables of compose's are those of `env` alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EYRIE_", "COMPOSE_"))}
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**kept, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if log else subprocess.PIPE,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command[:6])} took longer than {timeout_s:g} s") from None
    except FileNotFoundError:
        raise Failed(f"there is no {command[0]} on this machine") from None
    if log:
        with log.open("a") as file:
            file.write(done.stdout)
    if done.returncode:
        end = "\n".join(f"{done.stdout}{done.stderr or ''}".splitlines()[-30:])
        raise Failed(f"{' '.join(command[:8])} ended with {done.returncode}:\n{end}")
    return done.stdout


def require_engine() -> str:
    """Make sure of an engine and of plugins that are new enough; what there is, for people."""
    engine = run(["docker", "info", "--format", "{{.ServerVersion}}"]).strip()
    compose = run(["docker", "compose", "version", "--short"]).strip()
    run(["docker", "buildx", "version"])
    if tuple(int(part) for part in compose.lstrip("v").split("-")[0].split(".")[:2]) < OLDEST_COMPOSE:
        raise Failed(f"compose {compose} is too old: {'.'.join(map(str, OLDEST_COMPOSE))} or later is needed")
    return f"Docker {engine}, compose {compose}"


def wait_until(look: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Look again and again until it is true; returns what it saw."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise Failed(f"waited {timeout_s:g} s in vain: {what}")
        time.sleep(POLL_S)
    return seen


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
