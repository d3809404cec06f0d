"""Inspections over HTTP: joined and stored across gateways, ended with them, and every failure said."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.gateway.test_cli import eyrie
from tests.support.gateway_process import GatewayProcess, free_port, gateway_process
from tests.support.verifier_stub import VerifierStub
from tests.support.wait import wait_until
from tools.embedded_redis import RedisHandle

pytestmark = pytest.mark.data
CHATS = "".join(
    json.dumps({"messages": [{"role": "user", "content": f"sum {n}"}, {"role": "assistant", "content": f"it is {n}"}]})
    + "\n"
    for n in range(20)
).encode()


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[VerifierStub]:
    with VerifierStub(tmp_path) as stub:
        yield stub


def upload(http: httpx.Client, content: bytes = CHATS) -> str:
    return str(http.post("/v1/datasets", content=content).raise_for_status().json()["id"])


def body(stub: VerifierStub, **more: Any) -> dict[str, Any]:
    return {"preset": "tiny", "verifier": {"endpoint": stub.url}, "data": {"generate": False}, **more}


def post(http: httpx.Client, dataset: str, document: Any, wait_s: float = 20) -> httpx.Response:
    return http.post(f"/v1/datasets/{dataset}/inspect", json=document, params={"wait_s": wait_s}, timeout=90)


def rendered(stub: VerifierStub) -> int:
    """Conversations that were rendered whole, those of the probe not counted."""
    bodies = [seen.body for seen in stub.seen if seen.path == "/tokenize"]
    return sum(
        body["messages"][0]["content"].startswith("sum") and not body["add_generation_prompt"] for body in bodies
    )


def children(gateway: GatewayProcess) -> list[psutil.Process]:
    found = psutil.Process(gateway.process.pid).children(recursive=True)
    return [child for child in found if any("inspection" in word for word in child.cmdline())]


def test_a_dataset_is_inspected_once_and_the_answer_is_stored(http: httpx.Client, stub: VerifierStub) -> None:
    dataset = upload(http)
    first = post(http, dataset, body(stub))
    assert first.status_code == 200, first.text
    found = first.json()
    assert (found["rows"], found["kept"], found["train"], found["val"]) == (20, 20, 18, 2)
    assert (found["tokens"]["measured"], found["tokens"]["complete"], found["why_not_rendered"]) == (20, True, None)
    marked = [segment["text"] for segment in found["samples"][0]["turns"][0]["segments"] if segment["supervised"]]
    assert marked[0].startswith("it is")
    count = rendered(stub)
    assert post(http, dataset, body(stub)).json() == found
    assert post(http, dataset, body(stub, wait_s=30)).json() == found
    assert rendered(stub) == count
    other = post(http, dataset, body(stub, sample=5)).json()
    assert (other["tokens"]["conversations"], other["tokens"]["complete"]) == (5, False)


def test_a_long_one_is_joined_until_it_ends(http: httpx.Client, stub: VerifierStub) -> None:
    dataset = upload(http)
    stub.delay_s = 0.5
    first = post(http, dataset, body(stub), wait_s=0)
    assert first.status_code == 202, first.text
    assert (first.json()["status"], first.headers["retry-after"]) == ("running", "1")
    progress: dict[str, Any] = {}

    def rendering() -> bool:
        progress.update(post(http, dataset, body(stub), 0).json()["progress"])
        return progress["phase"] == "rendering"

    wait_until(rendering, what="progress is shown")
    assert (progress["rows"], progress["share"]) == (20, 1.0)
    end = post(http, dataset, body(stub), wait_s=60)
    assert (end.status_code, end.json()["key"]) == (200, first.json()["key"])
    assert rendered(stub) == 20


def test_gateways_join_each_other(
    gateway: GatewayProcess, http: httpx.Client, stub: VerifierStub, redis_handle: RedisHandle, tmp_path: Path
) -> None:
    dataset = upload(http)
    stub.delay_s = 0.1
    second = gateway_process(tmp_path, redis_handle.url, store_root=str(gateway.store))
    with second as other, httpx.Client(base_url=other.url) as other_http, ThreadPoolExecutor() as pool:
        asked = [pool.submit(post, one, dataset, body(stub), 60) for one in (http, other_http) * 3]
        answers = [one.result() for one in asked]
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
    assert rendered(stub) == 20


def test_a_killed_process_is_said_and_nothing_stays(
    gateway: GatewayProcess, http: httpx.Client, stub: VerifierStub
) -> None:
    dataset = upload(http)
    stub.delay_s = 0.5
    assert post(http, dataset, body(stub), 0).status_code == 202
    (child,) = wait_until(lambda: children(gateway), what="the child process")
    child.send_signal(signal.SIGKILL)
    answer = post(http, dataset, body(stub), 60)
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert "was killed (signal 9)" in answer.json()["detail"]
    assert not list((gateway.store / "datasets" / dataset).glob("inspections/*"))
    assert not list((gateway.store / "staging").iterdir())
    stub.delay_s = 0
    assert post(http, dataset, body(stub, sample=3)).status_code == 200


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_dies_with_its_gateway(
    how: signal.Signals, stub: VerifierStub, redis_handle: RedisHandle, tmp_path: Path
) -> None:
    stub.delay_s = 0.5
    with gateway_process(tmp_path, redis_handle.url) as own, httpx.Client(base_url=own.url) as http:
        assert post(http, upload(http), body(stub), 0).status_code == 202
        (child,) = wait_until(lambda: children(own), what="the child process")
        own.process.send_signal(how)
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, what="the child is gone")
        own.process.wait(20)


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"datas": {}}, "/datas"),
        ({"data": {"epochs": 3}}, "/data/epochs"),
        ({"data": {"max_seq_len": 2}}, "/data/max_seq_len"),
        ({"data": {"generate": "perhaps"}}, "/data/generate"),
        ({"data": {"sampling": {"temperature": 0}}}, "/data/sampling/temperature"),
        ({"verifier": {"endpoint": "ftp://x"}}, "/verifier/endpoint"),
        ({"verifier": {"model": "/no/such/folder"}}, "/verifier/model"),
        ({"preset": "huge"}, "/preset"),
        ({"sample": -1}, "/sample"),
        ({"wait_s": 61}, "/wait_s"),
    ],
)
def test_a_wrong_field_is_named(document: dict[str, Any], pointer: str, http: httpx.Client, dataset: str) -> None:
    answer = post(http, dataset, document)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


def test_what_is_no_request_is_refused(http: httpx.Client, dataset: str) -> None:
    path = f"/v1/datasets/{dataset}/inspect"
    assert http.post(path, content=b"{").status_code == 400
    assert http.post(path, content=b"[1]").status_code == 422
    assert http.post(path, content=b" " * (2 << 20)).status_code == 413
    assert http.post(path, params={"wait_s": 61}).status_code == 422
    assert http.post("/v1/datasets/ds_00000000000000000000/inspect").status_code == 404
    assert http.post("/v1/datasets/..%2fx/inspect").status_code == 404


def test_without_a_body_and_a_verifier_the_counts_come(http: httpx.Client, dataset: str) -> None:
    found = http.post(f"/v1/datasets/{dataset}/inspect", timeout=60).json()
    assert (found["rows"], found["kept"], found["tokens"], found["samples"]) == (2, 2, None, None)
    assert "does not answer" in found["why_not_rendered"]


def test_the_command_line_shows_a_file(gateway: GatewayProcess, stub: VerifierStub, tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_bytes(CHATS + b'{"messages": [{"role": "wizard", "content": "x"}]}\n')
    flags = ("--preset", "tiny", "--set", f"verifier.endpoint={stub.url}", "--set", "data.generate=false")
    shown = eyrie(gateway.url, "inspect", str(file), *flags)
    assert shown.returncode == 0, shown.stderr
    assert "unknown_role" in shown.stdout
    assert "line 21: turn 1 has the role 'wizard'" in shown.stdout
    assert "«it is" in shown.stdout
    assert "20 rows of all 20 kept conversations" in shown.stdout
    dataset = next(word for word in shown.stdout.split() if word.startswith("ds_"))
    found = json.loads(eyrie(gateway.url, "inspect", dataset, *flags, "-o", "json").stdout)
    assert (found["dataset"], found["kept"]) == (dataset, 20)


def test_the_command_line_ends_with_2_where_no_job_could_work(gateway: GatewayProcess, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "a"}\n{"text": "b"}\n')
    shown = eyrie(gateway.url, "inspect", str(file), "--sample", "0")
    assert (shown.returncode, "No job could use it: 1 usable conversations" in shown.stdout) == (2, True)
    assert eyrie(gateway.url, "inspect", "ds_00000000000000000000").returncode == 4
    assert eyrie(gateway.url, "inspect", str(tmp_path / "absent.jsonl")).returncode == 2
    assert eyrie(f"http://127.0.0.1:{free_port()}", "inspect", str(file)).returncode == 3
