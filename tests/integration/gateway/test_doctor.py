"""`eyrie doctor` as a command, where torch and vLLM are not installed: against real services, and without them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from tests.support.gateway_process import ROOT, GatewayProcess
from tools.embedded_redis import RedisHandle

# Importing one of them would fail, in the command's own process too.
WITHOUT_TORCH = """
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "vllm", "speculators")))
from services.cli.main import main
main()
"""
NOWHERE = "http://127.0.0.1:9"


def doctor(*arguments: str, **variables: str) -> tuple[int, str]:
    """Run it; its exit code, and what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EYRIE_")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "doctor", *arguments],
        cwd=ROOT,
        env={**kept, **{f"EYRIE_{name}": value for name, value in variables.items()}},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def findings(output: str) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(output)["checks"]}


@pytest.fixture
def forgetful(redis_handle: RedisHandle) -> Iterator[str]:
    """The module's Redis, set up so that it may lose jobs."""
    with Redis.from_url(redis_handle.url, decode_responses=True) as redis:
        redis.config_set("appendfsync", "everysec")
        redis.config_set("maxmemory-policy", "allkeys-lru")
        yield redis_handle.url
        redis.config_set("appendfsync", "always")
        redis.config_set("maxmemory-policy", "noeviction")


def test_a_machine_that_works_has_no_problems(gateway: GatewayProcess, redis_handle: RedisHandle, tmp_path) -> None:
    gateway.store.mkdir(exist_ok=True)
    variables = {"REDIS_URL": redis_handle.url, "STORE_ROOT": str(gateway.store), "EXCHANGE_ROOT": str(tmp_path)}
    code, output = doctor("--output", "json", "--url", gateway.url, **variables)
    found = findings(output)
    assert code == 0, output
    assert json.loads(output)["status"] == "ok"
    assert found["redis"]["status"] == "ok"
    assert found["redis"]["details"]["appendfsync"] == "always"
    assert found["gateway"]["summary"] == f"{gateway.url} answers, and no worker lives"
    assert {found[f"attention ({name})"]["status"] for name in ("transformers", "vLLM")} == {"info"}
    assert "not installed" in found["attention (vLLM)"]["summary"]


def test_each_problem_is_named_with_what_to_do(forgetful: str, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # takes connections and never answers
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        variables = {
            "REDIS_URL": forgetful,
            "STORE_ROOT": str(tmp_path / "absent"),
            "VERIFIER_URL": NOWHERE,
            "GATEWAY_PORT": "70000",
        }
        code, output = doctor("--output", "json", "--url", url, **variables)
        assert code == 1
        problems = {name: check for name, check in findings(output).items() if check["status"] == "problem"}
        assert set(problems) == set(json.loads(output)["problems"]) == {"settings", "gateway"}
        assert "EYRIE_GATEWAY_PORT" in problems["settings"]["summary"]
        del variables["GATEWAY_PORT"]
        code, output = doctor("--url", url, **variables)
    assert code == 1
    for words in ("allkeys-lru", "set maxmemory-policy noeviction", "appendfsync always", "there is no folder"):
        assert words in output
    assert "problems: store, redis, gateway, verifier" in output


def test_a_machine_on_which_nothing_is_set_up_is_no_problem(tmp_path) -> None:
    code, output = doctor("--output", "json", "--timeout", "20")
    found = findings(output)
    assert code == 0, output
    assert found["verifier"]["status"] == "info"
    assert {check["status"] for check in found.values()} <= {"ok", "info", "warning"}
