"""Folders through a real gateway and the command line: taken whole or not at all, and what a job may do with them."""

import hashlib
import io
import json
import socket
import tarfile
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from services.cli.folder_archive import FolderArchive
from shared.schemas.registry import DatasetRecord, files_digest
from tests.integration.gateway.test_cli import eyrie
from tests.support.gateway_process import GatewayProcess
from tests.support.ready_folders import archive, content_of, make_rows, with_entry, write_folder
from tests.support.stage_runs import write_verifier
from tests.support.vocabularies import arrays, good_files, npy
from tests.support.wait import wait_until

pytestmark = pytest.mark.data
TAR = {"Content-Type": "application/x-tar"}
ROWS = make_rows(6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("rows") / "mine", ROWS)


def files_of(gateway: GatewayProcess) -> set[Path]:
    return {path for path in gateway.store.rglob("*") if path.is_file()}


def upload(http: httpx.Client, files: dict[str, bytes]) -> dict:
    response = http.post("/v1/datasets?name=rows", content=archive(files), headers=TAR)
    assert response.status_code == 201, response.text
    return response.json()


def test_the_command_line_sends_a_folder_whole(gateway: GatewayProcess, folder: Path) -> None:
    sent = eyrie(gateway.url, "datasets", "upload", str(folder), "-o", "json")
    assert sent.returncode == 0, sent.stderr
    record = DatasetRecord.model_validate(json.loads(sent.stdout))
    assert (record.kind, record.name, record.rows) == ("rows", "mine", len(ROWS))
    stored = gateway.store / "datasets" / record.id
    assert content_of(stored / "files") == content_of(folder)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in content_of(folder).items()}
    assert {file.name: file.sha256 for file in record.files} == hashes
    assert record.sha256 == files_digest(record.files)
    assert record.bytes == sum(map(len, content_of(folder).values()))
    assert DatasetRecord.model_validate_json((stored / "dataset.json").read_bytes()) == record


def test_a_job_may_be_submitted_with_a_folder(gateway: GatewayProcess, folder: Path) -> None:
    flags = ("--preset", "tiny", "--prompts", str(folder), "--set", "data.generate=false", "-o", "json")
    sent = eyrie(gateway.url, "submit", *flags)
    assert sent.returncode == 0, sent.stderr
    dataset = json.loads(sent.stdout)["spec"]["data"]["dataset"]
    assert json.loads((gateway.store / "datasets" / dataset / "dataset.json").read_text())["kind"] == "rows"


def test_equal_folders_are_equal_archives_and_equal_datasets(folder: Path, http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    for name, content in reversed(content_of(folder).items()):
        path = tmp_path / "copy" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    first, second = FolderArchive(folder), FolderArchive(tmp_path / "copy")
    assert b"".join(first) == b"".join(second)
    assert first.size == len(b"".join(first))
    with tarfile.open(fileobj=io.BytesIO(b"".join(first))) as made:
        assert sorted(made.getnames()) == sorted(content_of(folder))
    one, other = (http.post("/v1/datasets", content=b"".join(made), headers=TAR).json() for made in (first, second))
    assert one["sha256"] == other["sha256"]
    assert one["id"] != other["id"]


def test_a_folder_that_does_not_fit_is_refused_by_name_and_nothing_stays(
    folder: Path, gateway: GatewayProcess, http: httpx.Client
) -> None:
    before = files_of(gateway)
    bad = with_entry(content_of(folder), lambda entry: setattr(entry, "type", tarfile.SYMTYPE))
    for content, status, message in (
        (bad, 422, "symbolic link"),
        (archive({**content_of(folder), "model.bin": b"x"}), 422, "model.bin"),
        (archive({"data-0.arrow": b"\xff" * 1_200_000}), 413, "EYRIE_MAX_UPLOAD_BYTES"),
        (b"no archive" * 100, 422, "not a tar archive"),
    ):
        response = http.post("/v1/datasets", content=content, headers=TAR)
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"
        assert message in response.json()["detail"]
    assert files_of(gateway) == before


def test_a_hash_of_the_archive_is_honoured(folder: Path, gateway: GatewayProcess, http: httpx.Client) -> None:
    content, before = archive(content_of(folder)), files_of(gateway)
    wrong = http.post("/v1/datasets", content=content, headers={**TAR, "X-Content-SHA256": "0" * 64})
    assert (wrong.status_code, files_of(gateway)) == (422, before)
    right = {**TAR, "X-Content-SHA256": hashlib.sha256(content).hexdigest()}
    assert http.post("/v1/datasets", content=content, headers=right).status_code == 201


def test_an_upload_cut_half_way_leaves_nothing(folder: Path, gateway: GatewayProcess, http: httpx.Client) -> None:
    before, content = files_of(gateway), archive({"data-0.arrow": b"\xff" * 300_000})
    address = urlsplit(gateway.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        head = f"POST /v1/datasets HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/x-tar\r\n"
        connection.sendall(f"{head}Content-Length: {3 * len(content)}\r\n\r\n".encode() + content)
        wait_until(lambda: any((gateway.store / "staging").iterdir()), what="the upload has begun")
    wait_until(lambda: not any((gateway.store / "staging").iterdir()), what="the cut upload is removed")
    assert files_of(gateway) == before


def submit(http: httpx.Client, verifier: Path, dataset: str, **changes: dict) -> httpx.Response:
    shape = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 128}
    document = {
        "preset": "tiny",
        "verifier": {"model": str(verifier)},
        "data": {"dataset": dataset, "generate": False, **changes.pop("data", {})},
        "draft": {**shape, **changes.pop("draft", {})},
        **changes,
    }
    return http.post("/v1/jobs", json=document)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_verifier(tmp_path_factory.mktemp("verifier"))


def pointers(response: httpx.Response) -> dict[str, str]:
    assert response.status_code == 422, response.text
    return {error["pointer"]: error["message"] for error in response.json()["errors"]}


def test_jobs_of_rows_and_vocabularies_are_taken_and_what_they_cannot_do_is_refused(
    folder: Path, http: httpx.Client, verifier: Path, dataset: str
) -> None:
    rows, given = upload(http, content_of(folder))["id"], upload(http, good_files()["npy"])["id"]
    assert upload(http, good_files()["one pt"])["kind"] == "vocabulary"
    taken = submit(http, verifier, rows)
    assert taken.status_code in (201, 202), taken.text
    assert pointers(submit(http, verifier, rows, data={"generate": True})).keys() == {"/data/generate"}
    assert pointers(submit(http, verifier, given)).keys() == {"/data/dataset"}
    for size in (0, 1, 513):  # none, fewer than the control tokens, more than the verifier has
        assert pointers(submit(http, verifier, rows, draft={"vocab_size": size})).keys() == {"/draft/vocab_size"}
    suites = {"suites": [{"name": "a", "dataset": rows}]}
    assert pointers(submit(http, verifier, rows, evaluate=suites)).keys() == {"/evaluate/suites/0/dataset"}
    assert pointers(submit(http, verifier, rows, draft={"vocabulary": given})).keys() == {"/draft/vocab_size"}
    sized = submit(http, verifier, rows, draft={"vocabulary": given, "vocab_size": 54})
    assert sized.json()["spec"]["draft"]["vocabulary"] == given
    assert pointers(submit(http, verifier, rows, draft={"vocabulary": dataset})).keys() == {"/draft/vocabulary"}
    ids = {"t2d.npy": npy(arrays()[0]), "d2t.npy": npy(arrays()[0].nonzero()[0])}
    absolute = upload(http, ids)["id"]
    refused = pointers(submit(http, verifier, rows, draft={"vocabulary": absolute, "vocab_size": 54}))
    assert "token ids themselves" in refused["/draft/vocabulary"]
