"""Bodies that no route takes: too long, with a name twice, not JSON; and addresses that are not there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from services.gateway.app import create_app
from services.gateway.bodies import MAX_DOCUMENT_BYTES
from shared.settings import Settings

PROBLEM = "application/problem+json"
OTHERS = {("post", "/v1/datasets"), ("delete", "/v1/datasets/{dataset_id}")}  # files have another limit; none is read


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    settings = Settings(redis_url="redis://127.0.0.1:9/0", store_root=tmp_path, webhook_hosts="hooks.example.org")
    return TestClient(create_app(settings), raise_server_exceptions=False, follow_redirects=False)


def pieces(count: int) -> Iterator[bytes]:
    yield b'{"name": "'
    for _ in range(count):
        yield b"x" * (1 << 16)
    yield b'"}'


def test_every_route_refuses_a_body_that_is_longer_than_a_document(client: TestClient) -> None:
    seen = 0
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        for method in operations.keys() & {"post", "put", "delete"}:
            address = path.replace("{", "").replace("}", "")
            if (method, path) in OTHERS:
                continue
            for content in (b"x" * (MAX_DOCUMENT_BYTES + 1), pieces(20)):
                refused = client.request(method, address, content=content, headers={"Content-Type": "application/json"})
                assert (refused.status_code, refused.headers["content-type"]) == (413, PROBLEM), (method, path)
            seen += 1
    assert seen > 12


def test_who_waits_to_be_asked_for_the_body_sends_none(client: TestClient) -> None:
    def never() -> Iterator[bytes]:
        raise AssertionError("the body was asked for")
        yield b""

    headers = {"Content-Length": str(50 << 20), "Expect": "100-continue"}
    assert client.post("/v1/gc", content=never(), headers=headers).status_code == 413


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/plan", "/v1/webhooks", "/v1/api-keys", "/v1/gc"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"name": "a", "name": "b"}', "'name' stands in one object twice"),
        (b'{"a": [{"b": 1, "c": 2, "b": 1}]}', "'b' stands in one object twice"),
        (b'{"retention_days": NaN}', "NaN is not a number that JSON has"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"{", "line 1, column 2"),
    ],
    ids=["twice", "twice below", "NaN", "deep", "not UTF-8", "cut"],
)
def test_what_is_no_json_is_400(client: TestClient, path: str, content: bytes, message: str) -> None:
    refused = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.headers["content-type"]) == (400, PROBLEM)
    assert message in refused.json()["detail"]


def test_json_is_taken_whatever_its_type_is_called(client: TestClient) -> None:
    content = b'{"url": "http://hooks.example.org/x"}'
    for kind in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        assert client.post("/v1/webhooks", content=content, headers=kind).status_code == 201


@pytest.mark.parametrize("path", ["/v1/jobs/", "/v1/jobs/%2e%2e%2f", "/v1/drafts/x/", "/v1/webhooks/x/"])
def test_an_address_that_is_not_there_leads_nowhere_else(client: TestClient, path: str) -> None:
    for method in ("GET", "DELETE"):
        found = client.request(method, path)
        assert (found.status_code, found.headers["content-type"]) == (404, PROBLEM)
