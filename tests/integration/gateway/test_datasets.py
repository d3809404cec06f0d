"""Uploads over HTTP: good files in any spelling are kept whole, bad ones are refused by line, nothing stays behind."""

import hashlib
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.wait import wait_until

pytestmark = pytest.mark.data

GOOD = {
    "plain": b'{"prompt": "a"}\n{"prompt": "b"}\n',
    "byte order mark": b'\xef\xbb\xbf{"prompt": "a"}\n{"prompt": "b"}\n',
    "CRLF": b'{"prompt": "a"}\r\n{"prompt": "b"}\r\n',
    "no last newline": b'{"prompt": "a"}\n{"prompt": "b"}',
    "blank lines": b'\n{"prompt": "a"}\n  \n\n{"prompt": "b"}\n\n',
    "not ASCII": '{"prompt": "größer"}\n{"prompt": "日本"}\n'.encode(),
}
BAD = {
    "empty": (b"", "no rows"),
    "blank lines only": (b"\n \r\n\n", "no rows"),
    "not JSON": (b'{"a": 1}\n\n{"a": }\n', "line 3: not JSON"),
    "cut row": (b'{"a": 1}\n{"a": "b', "line 2: not JSON"),
    "not UTF-8": (b'{"a": 1}\n{"a": "\xff"}\n', "line 2: byte 8 of the line is not UTF-8"),
    "UTF-16": ('{"a": 1}\n'.encode("utf-16"), "line 1: the file is UTF-16"),
    "array": (b"[1]\n", "line 1: not a JSON object"),
    "NaN": (b'{"a": NaN}\n', "line 1: not JSON"),
    "long line": (b'{"a": "' + b"x" * 5000 + b'"}\n', "line 1: longer than 4096 bytes"),
    "endless line": (b"x" * 900_000, "line 1: longer than 4096 bytes"),
    "deep": (b"[" * 3000 + b"\n", "line 1: nested too deeply"),
}


def files_of(gateway: GatewayProcess) -> set[Path]:
    return {path for path in gateway.store.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", GOOD)
def test_a_good_file_is_kept_byte_for_byte(kind: str, gateway: GatewayProcess, http: httpx.Client) -> None:
    response = http.post("/v1/datasets", params={"name": "good"}, content=GOOD[kind])
    assert response.status_code == 201, response.text
    record = response.json()
    assert (record["rows"], record["bytes"]) == (2, len(GOOD[kind]))
    assert record["sha256"] == hashlib.sha256(GOOD[kind]).hexdigest()
    assert (gateway.store / "datasets" / record["id"] / record["files"][0]["path"]).read_bytes() == GOOD[kind]
    assert http.get(response.headers["location"]).json() == record
    assert http.get("/v1/datasets").json()["data"][0] == record
    equal = http.get("/v1/datasets", params={"sha256": record["sha256"].upper()}).json()["data"]
    assert equal[0] == record
    assert {dataset["sha256"] for dataset in equal} == {record["sha256"]}
    assert http.get("/v1/datasets", params={"sha256": "0" * 64}).json()["data"] == []


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_by_line_and_nothing_stays(
    kind: str, gateway: GatewayProcess, http: httpx.Client
) -> None:
    content, message = BAD[kind]
    before = files_of(gateway)
    response = http.post("/v1/datasets", content=content)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert message in response.json()["detail"]
    assert files_of(gateway) == before


def test_a_form_with_a_file_is_the_same_as_the_file(gateway: GatewayProcess, http: httpx.Client) -> None:
    response = http.post("/v1/datasets", files={"file": ("my prompts.jsonl", GOOD["CRLF"])}, data={"other": "x"})
    assert response.status_code == 201, response.text
    assert response.json()["sha256"] == hashlib.sha256(GOOD["CRLF"]).hexdigest()
    assert response.json()["name"] == "my prompts.jsonl"


def test_a_form_without_file_is_refused(gateway: GatewayProcess, http: httpx.Client) -> None:
    before = files_of(gateway)
    response = http.post("/v1/datasets", files={"document": ("a.jsonl", GOOD["plain"])})
    assert (response.status_code, files_of(gateway)) == (422, before)


def test_more_than_the_service_takes_is_413(gateway: GatewayProcess, http: httpx.Client) -> None:
    before = files_of(gateway)
    rows = b'{"prompt": "aaaaaaaaaaaaaaaaaa"}\n' * 40_000
    announced = http.post("/v1/datasets", content=rows)
    streamed = http.post("/v1/datasets", content=(rows[i : i + 4096] for i in range(0, len(rows), 4096)))
    assert (announced.status_code, streamed.status_code) == (413, 413)
    assert files_of(gateway) == before


def test_a_hash_that_does_not_match_is_refused(gateway: GatewayProcess, http: httpx.Client) -> None:
    before = files_of(gateway)
    right = {"X-Content-SHA256": hashlib.sha256(GOOD["plain"]).hexdigest()}
    assert http.post("/v1/datasets", content=GOOD["CRLF"], headers=right).status_code == 422
    assert files_of(gateway) == before
    assert http.post("/v1/datasets", content=GOOD["plain"], headers=right).status_code == 201


def test_an_upload_cut_half_way_leaves_nothing(gateway: GatewayProcess, http: httpx.Client) -> None:
    before = files_of(gateway)
    address = urlsplit(gateway.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        head = f"POST /v1/datasets HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 500000\r\n\r\n"
        connection.sendall(head.encode() + b'{"prompt": "a"}\n' * 5000)
        wait_until(lambda: files_of(gateway) != before, what="the upload has begun")
    wait_until(lambda: files_of(gateway) == before, what="the cut upload is removed")
    assert http.get("/healthz").status_code == 200


def test_pages_follow_each_other(http: httpx.Client) -> None:
    made = [http.post("/v1/datasets", content=GOOD["plain"]).json()["id"] for _ in range(5)]
    first = http.get("/v1/datasets", params={"limit": 2}).json()
    second = http.get("/v1/datasets", params={"limit": 2, "after": first["data"][-1]["id"]}).json()
    assert first["has_more"]
    assert [entry["id"] for entry in first["data"] + second["data"]] == made[::-1][:4]
    assert http.get("/v1/datasets", params={"after": "ds_nothing"}).status_code == 422


@pytest.mark.parametrize("name", ["../x", "a" * 10_000, "", " x", "a\x00b"])
def test_a_bad_name_is_refused(name: str, gateway: GatewayProcess, http: httpx.Client) -> None:
    before = files_of(gateway)
    assert http.post("/v1/datasets", params={"name": name}, content=GOOD["plain"]).status_code == 422
    assert files_of(gateway) == before
