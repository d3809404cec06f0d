"""`make compose-test` itself: how it counts, what it takes from pip, and what it says where there is no engine."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tools import compose_site
from tools.compose_site import Failed, Site, pip_settings
from tools.compose_test import Run

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def site() -> Site:
    made = Site("debian", "host")
    yield made
    compose_site.shutil.rmtree(made.folder, ignore_errors=True)


def test_without_an_engine_it_fails_in_json_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tools.compose_test", "--base-image", "debian"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1
    assert report["failed"] == 1
    assert report["image_mib"] == {}
    assert report["problems"][0].startswith("there is an engine: ")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_step_counts_and_only_a_vital_one_ends_the_test(site: Site) -> None:
    def fail() -> None:
        raise Failed("not as it must be\nand more")

    run = Run(site)
    run.step("good", lambda: None)
    run.step("bad", fail)
    with pytest.raises(Failed):
        run.step("worse", fail, vital=True)
    assert (run.passed, run.problems) == (1, ["bad: not as it must be", "worse: not as it must be"])


def test_the_build_gets_pips_settings_but_no_folders_of_this_machine(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = tmp_path / "wheels" / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
    wheel.parent.mkdir()
    wheel.write_text("torch")
    certificates = tmp_path / "ca.pem"
    certificates.write_text("a certificate")
    settings = {
        "index-url": "https://index.test/simple",
        "extra-index-url": "file:///some/folder https://more.test/simple",
        "cert": str(certificates),
        "find-links": str(wheel.parent),
    }
    monkeypatch.setattr(compose_site, "pip_settings", lambda: settings)
    site.prepare()
    assert (site.folder / "pip.conf").read_text().splitlines() == [
        "[global]",
        "index-url = https://index.test/simple",
        "extra-index-url = https://more.test/simple",
        "cert = /run/secrets/build_ca",
    ]
    assert site.variables["EYRIE_BUILD_CA"] == str(certificates)
    assert (site.context / "docker" / "wheels" / wheel.name).is_file()
    assert (site.context / "compose.yaml").is_file()
    assert not (site.context / ".git").exists()
    assert stat.S_IMODE(site.folder.stat().st_mode) == 0o700
    assert len({site.secret(name) for name in ("redis-password", "eyrie-api-key", "grafana-password")}) == 3


def test_settings_of_the_environment_win_over_files(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = "global.find-links='/one'\n:env:.find-links='/two'\nglobal.timeout='60'\ninstall.cert='/ca'\n"
    monkeypatch.setattr(compose_site, "run", lambda *_, **__: listing)
    assert pip_settings() == {"find-links": "/two", "timeout": "60", "cert": "/ca"}


def test_without_pip_its_settings_are_those_of_the_environment() -> None:
    code = "import json; from tools.compose_site import pip_settings; print(json.dumps(pip_settings()))"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment = clean | {"PIP_INDEX_URL": "https://index.test/simple", "PIP_CERT": "/ca.pem"}
    command = [sys.executable, "-S", "-c", code]  # -S: no packages, and so no pip
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"index-url": "https://index.test/simple", "cert": "/ca.pem"}


def test_secrets_that_exist_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    command = ["sh", str(ROOT / "docker" / "secrets.sh"), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    first = {path.name: path.read_text() for path in folder.iterdir()}
    (folder / "eyrie-api-key").unlink()
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.split() == ["made", str(folder / "eyrie-api-key")]
    assert (folder / "redis-password").read_text() == first["redis-password"]
    assert all(len(text) >= 40 and not text.endswith("\n") for text in first.values())
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o444}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("EYRIE_SECRETS=./own", "own"),
        ('export EYRIE_SECRETS = "own keys" # here', "own keys"),
        ("EYRIE_SECRETS='own'", "own"),
        ("EYRIE_SECRETS=own # here\r", "own"),
        ("EYRIE_SECRETS=first\nEYRIE_SECRETS=own", "own"),
        ("#EYRIE_SECRETS=./own", "secrets"),
        ("EYRIE_SECRETS=", "secrets"),
        ("EYRIE_SECRETS=$(touch ran)", None),
    ],
)
def test_secrets_are_made_where_compose_looks_for_them(tmp_path: Path, line: str, folder: str | None) -> None:
    (tmp_path / ".env").write_text(f"A=1\n{line}\nB=2\n")
    assert made_by_make(tmp_path) == folder
    (tmp_path / "elsewhere").mkdir()
    assert made_by_make(tmp_path, EYRIE_SECRETS="elsewhere/of-the-environment") == "of-the-environment"
    assert not (tmp_path / "ran").exists()


def made_by_make(site: Path, **variables: str) -> str | None:
    """The folder in which `make secrets` has made its files; None: it refused."""
    (site / "docker").mkdir(exist_ok=True)
    (site / "docker" / "secrets.sh").write_bytes((ROOT / "docker" / "secrets.sh").read_bytes())
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EYRIE_")}
    before = set(site.rglob("redis-password"))
    command = ["make", "--file", str(ROOT / "Makefile"), "secrets"]
    done = subprocess.run(command, cwd=site, env=clean | variables, capture_output=True, text=True, check=False)
    made = set(site.rglob("redis-password")) - before
    assert (done.returncode != 0) == (not made), done.stderr
    return made.pop().parent.name if made else None
