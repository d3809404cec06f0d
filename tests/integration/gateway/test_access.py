"""A gateway with API keys: replicas, an emptied Redis, the page's session, the command line, what must not start."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis

from tests.support.gateway_process import ROOT, GatewayProcess, gateway_process
from tests.support.wait import wait_until
from tools.embedded_redis import RedisHandle

FIRST = "the-first-key-0123456789abcdef"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("secrets") / "key"
    file.write_text(f"{FIRST}\n")
    return file


@pytest.fixture(scope="module")
def replicas(
    redis_handle: RedisHandle, key_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    folder = tmp_path_factory.mktemp("guarded")
    with (
        gateway_process(folder, redis_handle.url, api_key_file=str(key_file)) as one,
        gateway_process(folder, redis_handle.url, api_key_file=str(key_file)) as other,
    ):
        yield one, other


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_keys_are_made_used_and_deleted_at_every_replica(
    replicas: tuple[GatewayProcess, GatewayProcess], redis_handle: RedisHandle
) -> None:
    one, other = (process.url for process in replicas)
    made = httpx.post(f"{one}/v1/api-keys", json={"name": "ci"}, headers=bearer(FIRST))
    assert made.status_code == 201, made.text
    key = made.json()["key"]
    for url in (one, other):
        wait_until(lambda u=url: httpx.get(f"{u}/v1/jobs", headers=bearer(key)).status_code == 200)
    listed = httpx.get(f"{other}/v1/api-keys", headers=bearer(key)).json()["data"]
    assert [(entry["name"], entry["source"]) for entry in listed] == [("ci", "api"), (None, "file")]
    assert all("key" not in entry and "sha256" not in entry for entry in listed)

    Redis.from_url(redis_handle.url).flushall()
    assert httpx.get(f"{other}/v1/jobs", headers=bearer(key)).status_code == 200

    gone = httpx.delete(f"{one}/v1/api-keys/{made.json()['id']}", headers=bearer(key))
    assert gone.json() == {"id": made.json()["id"], "object": "api_key", "deleted": True}
    assert httpx.get(f"{one}/v1/jobs", headers=bearer(key)).status_code == 401
    wait_until(lambda: httpx.get(f"{other}/v1/jobs", headers=bearer(key)).status_code == 401, timeout_s=10)
    assert httpx.delete(f"{one}/v1/api-keys/{made.json()['id']}", headers=bearer(FIRST)).status_code == 404
    assert httpx.delete(f"{one}/v1/api-keys/file", headers=bearer(FIRST)).status_code == 409
    for process in replicas:
        assert FIRST not in process.log.read_text()
        assert key not in process.log.read_text()


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/metrics", "/v1/drafts/draft_x/files/a", "/nothing"])
def test_nothing_is_told_without_a_key(replicas: tuple[GatewayProcess, GatewayProcess], path: str) -> None:
    answer = httpx.get(replicas[0].url + path)
    assert answer.status_code == (303 if path == "/" else 401)
    assert httpx.get(replicas[0].url + path, headers=bearer(FIRST)).status_code in (200, 303, 307, 404)
    assert httpx.get(f"{replicas[0].url}/readyz").status_code == 200


def test_an_upload_without_a_key_is_refused_and_leaves_nothing(
    replicas: tuple[GatewayProcess, GatewayProcess],
) -> None:
    answer = httpx.post(f"{replicas[0].url}/v1/datasets?name=x", content=b'{"prompt": "a"}\n' * 10_000)
    assert answer.status_code == 401
    assert httpx.get(f"{replicas[0].url}/v1/datasets", headers=bearer(FIRST)).json()["data"] == []


def test_the_page_has_a_session(replicas: tuple[GatewayProcess, GatewayProcess]) -> None:
    one, other = (process.url for process in replicas)
    key = httpx.post(f"{one}/v1/api-keys", headers=bearer(FIRST)).json()
    html = {"Accept": "text/html"}
    with httpx.Client(base_url=one, timeout=30) as browser:
        wrong = browser.post("/session", data={"key": "wrong"}, headers=html)
        assert (wrong.status_code, "not known" in wrong.text) == (401, True)
        assert browser.post("/session", data={"key": "wrong"}).headers["content-type"] == "application/problem+json"
        many = browser.post("/session", data={f"field{number}": "x" for number in range(11)})
        assert (many.status_code, many.headers["content-type"]) == (422, "application/problem+json")
        right = browser.post("/session", data={"key": key["key"], "next": "/docs"}, headers=html)
        assert (right.status_code, right.headers["location"]) == (303, "/docs")
        cookie = right.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert key["key"] not in cookie
        assert browser.get("/docs").status_code == 200
        assert browser.get(f"{other}/v1/jobs").status_code == 200  # cookies know no ports
        forged = browser.post("/v1/gc", headers={"Origin": "https://elsewhere.example"})
        assert (forged.status_code, forged.headers["content-type"]) == (403, "application/problem+json")
        assert browser.post("/v1/gc", headers={"X-Eyrie-Page": "1"}).status_code == 200
        token = browser.cookies["eyrie_session"]
        assert browser.delete("/session").status_code == 204
        assert browser.get("/v1/jobs", headers={"Cookie": f"eyrie_session={token}"}).status_code == 401

        browser.post("/session", data={"key": key["key"]})
        assert browser.get("/v1/jobs").status_code == 200
        httpx.delete(f"{one}/v1/api-keys/{key['id']}", headers=bearer(FIRST))
        assert browser.get("/v1/jobs").status_code == 401  # a session ends with its key
        assert browser.post("/session", content=b"key=" + b"x" * 10_000).status_code == 422
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert browser.post("/session", content=b"key=" + b"x" * 10_000, headers=form).status_code == 413


def run(command: list[str], **environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EYRIE_")}
    return subprocess.run(
        command, cwd=ROOT, env=kept | environment, capture_output=True, text=True, check=False, timeout=120
    )


def eyrie(url: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return run([sys.executable, "-m", "services.cli.main", *arguments, "--url", url], **environment)


def test_the_command_line_finds_the_key(
    replicas: tuple[GatewayProcess, GatewayProcess], key_file: Path, tmp_path: Path
) -> None:
    url, wrong = replicas[0].url, tmp_path / "wrong"
    wrong.write_text("another-key-0123456789")
    without = eyrie(url, "list")
    assert without.returncode == 6
    assert "EYRIE_API_KEY_FILE" in without.stderr
    assert eyrie(url, "list", EYRIE_API_KEY=FIRST).returncode == 0
    assert eyrie(url, "list", EYRIE_API_KEY_FILE=str(key_file)).returncode == 0
    named = eyrie(url, "--api-key-file", str(key_file), "list", EYRIE_API_KEY="wrong-key-0123456789")
    assert named.returncode == 0
    refused = eyrie(url, "--api-key-file", str(wrong), "list")
    assert (refused.returncode, "another-key" in refused.stderr + refused.stdout) == (6, False)
    missing = eyrie(url, "--api-key-file", str(tmp_path / "none"), "list")
    assert (missing.returncode, "cannot be read" in missing.stderr) == (2, True)


def test_a_gateway_that_others_could_reach_does_not_start_without_a_key(tmp_path: Path) -> None:
    settings = {"EYRIE_STORE_ROOT": str(tmp_path), "EYRIE_GATEWAY_HOST": "0.0.0.0"}
    command = [sys.executable, "-m", "services.gateway"]
    refused = run(command, **settings)
    assert refused.returncode == 2
    assert "EYRIE_API_KEY_FILE" in refused.stderr
    assert "EYRIE_INSECURE_NO_API_KEY" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_gateway_without_a_key_says_so_and_makes_none(gateway: GatewayProcess, http: httpx.Client) -> None:
    assert "no API key is set" in gateway.log.read_text()
    refused = http.post("/v1/api-keys")
    assert (refused.status_code, "EYRIE_API_KEY_FILE" in refused.json()["detail"]) == (409, True)
    assert http.get("/v1/api-keys").json()["data"] == []
