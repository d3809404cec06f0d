"""The artifact store in a bucket: the same promises as in a folder, on a local S3 server."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import httpx
import pytest
from boto3.exceptions import RetriesExceededError
from botocore.exceptions import ReadTimeoutError
from botocore.httpsession import URLLib3Session

from services.gateway.reconciler import Reconciler
from shared.artifact_store import LocalArtifactStore, file_sha256
from shared.errors import ArtifactStoreError, UserError
from shared.job_store import JobStore
from shared.object_store import ATTEMPTS, CONNECT_TIMEOUT_S, READ_TIMEOUT_S, ObjectArtifactStore
from shared.schemas.manifest import FileEntry
from shared.settings import Settings
from tests.support.s3_server import BUCKET, s3_server

ROOT = Path(__file__).resolve().parents[3]
URL = f"s3://{BUCKET}/some/prefix"


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[dict[str, str]]:
    with s3_server() as variables:
        yield variables


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LocalArtifactStore:
    if request.param == "folder":
        return LocalArtifactStore(tmp_path / "store")
    return ObjectArtifactStore(f"{URL}/{tmp_path.name}", tmp_path / "work")


def other_machine(store: LocalArtifactStore, tmp_path: Path) -> LocalArtifactStore:
    if isinstance(store, ObjectArtifactStore):
        return ObjectArtifactStore(f"{URL}/{tmp_path.name}", tmp_path / "elsewhere")
    return LocalArtifactStore(store.root)


def test_documents_are_written_read_listed_and_deleted(store: LocalArtifactStore) -> None:
    assert not store.exists("jobs/a/job.json")
    with pytest.raises(KeyError):
        store.read("jobs/a/job.json")
    store.write("jobs/a/job.json", b"1")
    store.write("jobs/a/job.json", b"2")
    store.write("jobs/a/states/01.json", b"3")
    store.write("jobs/ab/job.json", b"4")
    assert store.read("jobs/a/job.json") == b"2"
    assert list(store.list("jobs")) == ["a", "ab"]
    assert list(store.list("jobs/a")) == ["job.json", "states"]
    assert list(store.list("nothing")) == []
    assert store.exists("jobs/a")
    size, changed = store.measure("jobs/a")
    assert size == 2
    assert abs(store.now() - changed) < 60
    store.delete("jobs/a")
    assert not store.exists("jobs/a")
    assert list(store.list("jobs")) == ["ab"]
    with pytest.raises(KeyError):
        store.measure("jobs/a")
    with pytest.raises(KeyError):
        store.read("../outside")


def test_of_sixteen_that_create_one_document_exactly_one_does(store: LocalArtifactStore) -> None:
    for number in range(3):
        barrier = threading.Barrier(16)

        def create(writer: int, key: str = f"stages/train/{number}/manifest.json", start=barrier) -> bool:
            start.wait()
            return store.create(key, f"writer {writer}".encode())

        with ThreadPoolExecutor(16) as pool:
            created = list(pool.map(create, range(16)))
        assert created.count(True) == 1
        winner = created.index(True)
        assert store.read(f"stages/train/{number}/manifest.json") == f"writer {winner}".encode()


def lose_the_next_answer(store: ObjectArtifactStore) -> None:
    """Have the storage take the next object that is put, and the client never hear of it."""
    lost: list[str] = []

    def send(request: Any, **_: Any) -> None:
        if not lost:
            lost.append(request.url)
            assert URLLib3Session().send(request).status_code == 200
            raise ReadTimeoutError(endpoint_url=request.url)

    store.client.meta.events.register("before-send.s3.PutObject", send)


def test_a_document_whose_creation_was_not_confirmed_is_its_writers_all_the_same(tmp_path: Path) -> None:
    """It is put again and found taken, by itself; who was told that another one had been first would clear away."""
    store = ObjectArtifactStore(f"{URL}/{tmp_path.name}", tmp_path / "work")
    lose_the_next_answer(store)
    assert store.create("stages/train/k/manifest.json", b"mine")
    assert not store.create("stages/train/k/manifest.json", b"mine"), "asked once, and taken"
    assert store.read("stages/train/k/manifest.json") == b"mine"


def test_what_was_published_is_there_on_another_machine(store: LocalArtifactStore, tmp_path: Path) -> None:
    folder = store.folder("stages/train/k/attempts/run_1/out")
    (folder / "draft").mkdir()
    (folder / "draft" / "model.safetensors").write_bytes(os.urandom(20 << 20))  # goes up in three parts
    (folder / "config.json").write_bytes(b"{}")
    files = [
        FileEntry(path=path.relative_to(folder).as_posix(), size=path.stat().st_size, sha256=file_sha256(path))
        for path in (folder / "draft" / "model.safetensors", folder / "config.json")
    ]
    root = "stages/train/k/attempts/run_1/out"
    store.publish(root)
    elsewhere = other_machine(store, tmp_path)
    assert list(elsewhere.damages(root, files)) == []
    there = elsewhere.path(root)
    assert [file_sha256(there / entry.path) for entry in files] == [entry.sha256 for entry in files]
    longer = files[1].model_copy(update={"size": 3})
    gone = files[1].model_copy(update={"path": "absent"})
    told = [str(damage) for damage in elsewhere.damages(root, [files[0], longer, gone])]
    assert told == ["config.json has 2 bytes instead of 3", "absent is missing"]


def test_a_file_that_grows_is_seen_to_grow(store: LocalArtifactStore, tmp_path: Path) -> None:
    log = store.folder("jobs/a/logs") / "train-1.log"
    elsewhere = other_machine(store, tmp_path)
    for text in ("one\n", "one\ntwo\n"):
        log.write_text(text)
        store.publish("jobs/a/logs")
        assert elsewhere.path("jobs/a/logs/train-1.log").read_text() == text


def test_an_upload_is_adopted_as_a_file_and_as_a_folder(store: LocalArtifactStore, tmp_path: Path) -> None:
    staged = store.staging_file()
    staged.write_bytes(b"rows")
    store.adopt("datasets/ds_a/files/0.jsonl", staged)
    folder = store.staging_file()
    folder.mkdir()
    (folder / "t2d.npy").write_bytes(b"x")
    store.adopt("datasets/ds_b", folder)
    elsewhere = other_machine(store, tmp_path)
    assert elsewhere.path("datasets/ds_a/files/0.jsonl").read_bytes() == b"rows"
    assert (elsewhere.path("datasets/ds_b") / "t2d.npy").read_bytes() == b"x"


def test_a_document_and_a_folder_are_moved(store: LocalArtifactStore, tmp_path: Path) -> None:
    store.write("stages/k/manifest.json", b"1")
    store.write("stages/k/out/a", b"2")
    store.move("stages/k/manifest.json", "stages/k/manifest.damaged.json")
    assert list(store.list("stages/k")) == ["manifest.damaged.json", "out"]
    store.move("stages/k", "staging/gone")
    elsewhere = other_machine(store, tmp_path)
    assert not elsewhere.exists("stages/k")
    assert elsewhere.read("staging/gone/out/a") == b"2"
    with pytest.raises(KeyError):
        store.move("stages/k", "staging/again")


def test_a_download_has_an_address_of_its_own_where_that_is_asked_for(tmp_path: Path) -> None:
    plain = ObjectArtifactStore(URL, tmp_path / "plain")
    store = ObjectArtifactStore(URL, tmp_path / "work", presign_s=60)
    assert plain.download_url("drafts/a", "model.safetensors") is None
    store.write("drafts/a", b"weights")
    url = store.download_url("drafts/a", "model.safetensors")
    assert url is not None
    assert "X-Amz-Expires=60" in url
    answer = httpx.get(url)
    assert (answer.status_code, answer.content) == (200, b"weights")
    assert answer.headers["content-disposition"] == 'attachment; filename="model.safetensors"'


def test_a_bucket_that_is_not_there_is_an_error_that_says_what_to_look_at(tmp_path: Path) -> None:
    store = ObjectArtifactStore("s3://absent", tmp_path)
    with pytest.raises(ArtifactStoreError, match="EYRIE_STORE_URL"):
        store.write("a", b"1")
    (store.folder("jobs/a/logs") / "train-1.log").write_text("one")
    with pytest.raises(ArtifactStoreError, match="NoSuchBucket") as refused:
        store.publish("jobs/a/logs")
    assert str(tmp_path) not in str(refused.value)
    staged = store.staging_file()
    staged.write_bytes(b"rows")
    with pytest.raises(ArtifactStoreError, match="NoSuchBucket"):
        store.adopt("datasets/a/files/0.jsonl", staged)
    with pytest.raises(UserError, match="s3://BUCKET"):
        ObjectArtifactStore("https://example.org", tmp_path)


def test_a_file_that_does_not_come_down_is_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectArtifactStore(f"{URL}/{tmp_path.name}", tmp_path)
    store.write("drafts/a", b"weights")

    def give_up(*_: Any) -> None:
        raise RetriesExceededError(OSError("cut off"))

    monkeypatch.setattr(store.client, "download_file", give_up)
    with pytest.raises(ArtifactStoreError, match="EYRIE_STORE_URL"):
        store.path("drafts/a")


def test_a_reconciler_downloads_nothing_of_what_was_moved_out_of_the_way(tmp_path: Path) -> None:
    store = ObjectArtifactStore(f"{URL}/{tmp_path.name}", tmp_path)
    store.write("jobs/job_1/logs/train-1.log", b"much")
    store.move("jobs/job_1", "staging/gone_1")  # and its gateway died before it was deleted
    mover = Reconciler(JobStore(Mock(), store), Mock(), Settings())
    mover._sweep()
    assert store.exists("staging/gone_1/logs/train-1.log")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with patch.object(store, "now", return_value=store.now() + 2 * 86_400):
        mover._sweep()
    assert not store.exists("staging/gone_1")


def test_a_call_that_hangs_is_given_up_in_seconds(tmp_path: Path) -> None:
    config = ObjectArtifactStore(URL, tmp_path).client.meta.config
    assert (config.connect_timeout, config.read_timeout) == (CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
    assert config.retries["total_max_attempts"] == ATTEMPTS


def test_a_service_without_a_bucket_does_not_load_boto3() -> None:
    code = "import sys, services.gateway.app, services.worker.main; print('boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
