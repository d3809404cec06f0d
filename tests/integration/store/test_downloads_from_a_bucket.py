"""Downloads with addresses in the bucket: the gateway sends nobody to one that fails."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.testclient import TestClient

from services.gateway.files import StoredFile, send_file
from services.gateway.problems import Problem
from shared.object_store import ObjectArtifactStore
from shared.schemas.job import Stage
from shared.schemas.manifest import FileEntry
from tests.support.s3_server import BUCKET, s3_server

CONTENT, KEY, PATH = b"weights", "drafts/a/model.safetensors", "model.safetensors"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FILES = {PATH: StoredFile(KEY, FileEntry(path=PATH, size=len(CONTENT), sha256=SHA256), Stage.PUBLISH)}


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with s3_server():
        yield


@pytest.fixture
def store(tmp_path: Path) -> ObjectArtifactStore:
    made = ObjectArtifactStore(f"s3://{BUCKET}/{tmp_path.name}", tmp_path / "work", presign_s=60)
    made.write(KEY, CONTENT)
    return made


@pytest.fixture
def http(store: ObjectArtifactStore) -> Iterator[httpx.Client]:
    app = FastAPI()

    @app.head("/file")
    @app.get("/file")
    def download(request: Request) -> Response:
        try:
            return send_file(store, FILES, PATH, request)
        except Problem as problem:
            return Response(status_code=problem.status)

    with TestClient(app, follow_redirects=False) as client:
        yield client


def test_a_get_is_sent_to_the_bucket_and_a_head_is_answered_from_the_manifest(http: httpx.Client) -> None:
    sent = http.get("/file")
    assert sent.status_code == 307
    assert httpx.get(sent.headers["location"]).content == CONTENT
    asked = http.head("/file")
    assert (asked.status_code, asked.headers["content-length"]) == (200, str(len(CONTENT)))
    assert (asked.headers["etag"], asked.headers["accept-ranges"]) == (f'"{SHA256}"', "bytes")
    assert asked.headers["content-type"] == "application/octet-stream"


def test_conditions_are_looked_at_before_anybody_is_sent_on(http: httpx.Client) -> None:
    for method in ("GET", "HEAD"):
        assert http.request(method, "/file", headers={"If-None-Match": f'"{SHA256}"'}).status_code == 304
        assert http.request(method, "/file", headers={"If-Match": '"other"'}).status_code == 412


def test_a_file_that_the_bucket_has_lost_is_404(http: httpx.Client, store: ObjectArtifactStore) -> None:
    store.delete(KEY)
    assert {http.request(method, "/file").status_code for method in ("GET", "HEAD")} == {404}
