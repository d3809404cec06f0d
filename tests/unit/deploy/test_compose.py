"""compose.yaml keeps its promises: who may reach whom, as which user, with what, and for how long.

Only YAML is read here, so that no Docker is needed; where there is one, compose itself reads the file as well. What
containers really have is checked by `make compose-test`.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.worker.supervision import GUARD_EXTRA_S
from shared.settings import Settings
from shared.verifier_settings import VerifierSettings

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = ROOT / "compose.yaml"
BUCKET = ROOT / "docker" / "object-storage.yaml"
OURS = ("gateway", "worker", "verifier", "worker-gpu", "verifier-gpu")
PROFILES = ("cpu", "gpu", "gpu-external", "observability")
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)(?:(:?-)([^{}]*))?\}")
WRITTEN = {  # the volumes that each service may write to
    "redis": {"redis"},
    "gateway": {"store"},
    "worker": {"store", "exchange", "gpu-locks"},
    "worker-gpu": {"store", "exchange", "gpu-locks"},
    "verifier": {"exchange"},
    "verifier-gpu": {"exchange"},
    "prometheus": {"prometheus"},
    "grafana": {"grafana"},
}


def with_defaults(value: Any) -> Any:
    """A document as compose reads it where nobody has set a variable."""
    if isinstance(value, dict):
        return {name: with_defaults(item) for name, item in value.items()}
    if isinstance(value, list):
        return [with_defaults(item) for item in value]
    return VARIABLE.sub(lambda match: match[3] or "", value) if isinstance(value, str) else value


DOCUMENT = with_defaults(yaml.safe_load(COMPOSE.read_text()))
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
every_service = pytest.mark.parametrize("name", SERVICES)


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)(s|m)", text)
    assert match, text
    return int(match[1]) * {"s": 1, "m": 60}[match[2]]


def members(network: str) -> set[str]:
    return {name for name, service in SERVICES.items() if network in service["networks"]}


def volumes(name: str) -> list[tuple[str, str, bool]]:
    """Source, target, and whether it is read-only."""
    parts = [volume.split(":") for volume in SERVICES[name].get("volumes", [])]
    return [(part[0], part[1], part[2:] == ["ro"]) for part in parts]


def environment(name: str) -> dict[str, str | None]:
    return SERVICES[name].get("environment", {})


@every_service
def test_a_service_has_no_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["init"] is True
    forbidden = {"privileged", "cap_add", "devices", "network_mode", "pid", "ipc", "userns_mode", "cgroup"}
    assert not forbidden & service.keys()
    assert service.get("user", "10001").split(":")[0] not in ("", "0", "root")


@every_service
def test_a_service_is_bounded(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert service["pids_limit"] > 0
    assert float(service["cpus"]) >= 0
    assert all("size=" in mount for mount in service["tmpfs"])
    assert service["logging"]["options"]["max-size"]
    assert seconds(service["stop_grace_period"]) >= 20


@every_service
def test_a_service_writes_only_to_its_own_volumes_and_sees_little_of_the_host(name: str) -> None:
    written = {source for source, _, read_only in volumes(name) if not read_only}
    assert written == WRITTEN[name]
    for source, _, read_only in volumes(name):
        assert source in DOCUMENT["volumes"] or (source.startswith("./observability/") and read_only), source


@every_service
def test_a_service_tells_whether_it_is_well_and_waits_for_what_it_needs(name: str) -> None:
    service = SERVICES[name]
    if name in OURS:
        assert "\nHEALTHCHECK " in (ROOT / service["build"]["dockerfile"]).read_text()
    else:
        assert service["healthcheck"]["test"]
    for other, how in service.get("depends_on", {}).items():
        assert how["condition"] == "service_healthy"
        there = set(SERVICES[other].get("profiles", PROFILES)) >= set(service.get("profiles", PROFILES))
        assert there or how.get("required") is False, f"{name} needs {other}, which some of its profiles have not"


def test_only_gateway_and_grafana_are_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"gateway": ["127.0.0.1:8700:8700"], "grafana": ["127.0.0.1:3000:3000"]}
    assert members("edge") == {"gateway", "grafana"}
    inner = {network: how for network, how in DOCUMENT["networks"].items() if network != "edge"}
    assert all(how == {"internal": True} for how in inner.values()), inner


def test_only_gateway_and_workers_reach_verifier_and_redis() -> None:
    workers, verifiers = {"worker", "worker-gpu"}, {"verifier", "verifier-gpu"}
    assert members("control") == {"redis", "gateway", *workers}
    assert members("inference") == {"gateway", *workers, *verifiers}
    assert members("verifier-figures") == {"prometheus", *verifiers}
    for name in verifiers:
        assert set(SERVICES[name]["networks"]) == {"inference", "verifier-figures"}
    assert set(SERVICES["redis"]["networks"]) == {"control"}


def test_redis_keeps_what_it_is_told_and_its_password_to_itself() -> None:
    command = " ".join(SERVICES["redis"]["command"])
    assert "--appendonly yes --appendfsync always" in command
    assert "--maxmemory-policy noeviction" in command
    start, config = command.split("<<CONFIG")
    assert "requirepass $$(cat /run/secrets/redis-password)" in config
    assert "/run/secrets" not in start
    assert SERVICES["redis"]["secrets"] == ["redis-password"]


def test_secrets_are_files_and_nowhere_in_an_environment() -> None:
    assert all(set(how) == {"file"} for how in DOCUMENT["secrets"].values())
    for name in SERVICES:
        for variable, value in environment(name).items():
            if re.search(r"PASSWORD|API_KEY|SECRET", variable):
                assert str(value).startswith("/run/secrets/"), f"{name}: {variable}"
            assert not re.search(r"://[^/]*:[^/]*@", str(value)), f"{name}: {variable}"
    assert environment("gateway")["EYRIE_API_KEY_FILE"] == "/run/secrets/eyrie-api-key"
    for service in SERVICES.values():
        assert not {"pip_conf", "build_ca"} & set(service.get("secrets", [])), "for the build alone"


@pytest.mark.parametrize("name", ["worker", "worker-gpu"])
def test_a_stopped_worker_has_time_to_save_its_stage(name: str) -> None:
    grace_s = float(environment(name)["EYRIE_STOP_GRACE_S"] or 0)
    assert seconds(SERVICES[name]["stop_grace_period"]) > grace_s + GUARD_EXTRA_S
    assert grace_s >= Settings.model_fields["stop_grace_s"].default


def test_workers_of_one_host_share_locks_and_exchange_files_with_the_verifier_under_one_uid() -> None:
    for name in ("worker", "worker-gpu"):
        assert environment(name)["EYRIE_GPU_LOCK_FOLDER"] == "/run/eyrie/gpus"
        assert ("gpu-locks", "/run/eyrie/gpus", False) in volumes(name)
    for name in ("worker", "worker-gpu", "verifier", "verifier-gpu"):
        assert ("exchange", "/var/lib/eyrie/exchange", False) in volumes(name)
        assert "shm_size" in SERVICES[name]
        assert SERVICES[name]["build"]["args"]["EYRIE_UID"] == "10001"
        assert "user" not in SERVICES[name]


def test_every_variable_that_a_service_gets_is_one_that_it_reads() -> None:
    known = {f"EYRIE_{name.upper()}" for name in Settings.model_fields}
    known |= {f"EYRIE_VERIFIER_{name.upper()}" for name in VerifierSettings.model_fields}
    for name in OURS:
        given = {variable for variable in environment(name) if variable.startswith("EYRIE_")}
        assert given <= known, f"{name}: {given - known}"


def test_every_setting_is_in_the_example_with_its_default() -> None:
    text = COMPOSE.read_text() + BUCKET.read_text()
    used = {match[1]: match[3] for match in VARIABLE.finditer(text)}
    handed_on = re.findall(r"(?m)^ +([A-Z_]+):$", text)
    lines = re.findall(r"(?m)^#([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text())
    shown = dict(lines)
    assert len(shown) == len(lines), "a setting is shown twice"
    needed = set(re.findall(r"\$\{([A-Z_]+):\?", text))
    assert shown.keys() - {"COMPOSE_PROFILES"} == {*used, *handed_on, *needed}
    for name, default in used.items():
        if name != "EYRIE_MODELS":  # without it an empty volume is mounted
            assert shown[name] == default, name
    for name in handed_on:
        field = Settings.model_fields.get(name.removeprefix("EYRIE_").lower())
        if field is not None and isinstance(field.default, int | float):
            assert float(shown[name]) == field.default, name


def test_every_line_of_the_example_can_be_taken_over_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = re.findall(r"(?m)^#((?:EYRIE|AWS)_[A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text())
    for name, value in lines:
        if name != "EYRIE_VERIFIER_TRUST_REMOTE_CODE":  # right where the model's folder is
            monkeypatch.setenv(name, value)
    assert Settings().store_presign_s is None
    flags = VerifierSettings().extra_args
    assert flags
    vllm = Path(next(iter(importlib.util.find_spec("vllm").submodule_search_locations)))  # type: ignore
    assert all(f'"{flag}"' in (vllm / "engine" / "arg_utils.py").read_text() for flag in flags)


def test_a_bucket_gives_gateway_and_workers_its_settings_credentials_as_a_file_and_a_way_out() -> None:
    services = with_defaults(yaml.safe_load(BUCKET.read_text()))["services"]
    assert services.keys() == {"gateway", "worker", "worker-gpu"}
    for name, service in services.items():
        assert service["secrets"] == ["aws-credentials"]
        assert service["environment"]["AWS_SHARED_CREDENTIALS_FILE"] == "/run/secrets/aws-credentials"
        assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} & service["environment"].keys()
        assert "edge" in [*service.get("networks", []), *SERVICES[name]["networks"]]


def compose_config(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What compose itself says of the file, where there is one."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EYRIE_", "COMPOSE_"))}
    if shutil.which("docker") is None:
        pytest.skip("no Docker here")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, env=clean, check=False).returncode:
        pytest.skip("this Docker has no compose")
    command = ["docker", "compose", "--env-file", "/dev/null", *arguments, "config", "--quiet"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=clean | variables, check=False)


@pytest.mark.parametrize("profile", PROFILES)
def test_compose_itself_takes_the_file(profile: str) -> None:
    done = compose_config("--profile", profile)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()


def test_compose_itself_takes_the_file_for_a_bucket_and_asks_for_its_url() -> None:
    files = ("--file", "compose.yaml", "--file", "docker/object-storage.yaml", "--profile", "cpu")
    done = compose_config(*files, EYRIE_STORE_URL="s3://bucket/eyrie")
    assert done.returncode == 0, done.stderr
    assert "EYRIE_STORE_URL" in compose_config(*files).stderr
