"""Datasets over HTTP: uploads are checked against what was announced of them; what is in use is not deleted."""

import base64
import hashlib

import httpx
import pytest

from shared.artifact_store import LocalArtifactStore
from tests.integration.gateway.test_jobs import create
from tests.support.gateway_process import GatewayProcess

ROWS = b'{"prompt": "a"}\n{"prompt": "b"}\n'
DIGEST = hashlib.sha256(ROWS)
HEX, HEADER = DIGEST.hexdigest(), f"sha-256=:{base64.b64encode(DIGEST.digest()).decode()}:"
OTHER = f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"


def upload(http: httpx.Client, digest: str | None = None, sha256: str | None = None, **more) -> httpx.Response:
    headers = {"Content-Digest": digest} if digest else {}
    return http.post("/v1/datasets", params={"sha256": sha256} if sha256 else {}, headers=headers, **more)


@pytest.mark.parametrize(
    ("digest", "sha256"),
    [(HEADER, None), (None, HEX), (None, HEX.upper()), (HEADER, HEX), (f"sha-512=:AAAA:, {HEADER}", None)],
)
def test_an_upload_with_its_own_checksum_is_taken(digest, sha256, http: httpx.Client) -> None:
    response = upload(http, digest, sha256, content=ROWS)
    assert (response.status_code, response.json()["sha256"]) == (201, HEX)


@pytest.mark.parametrize(
    ("digest", "sha256", "pointer"),
    [
        (OTHER, None, "/Content-Digest"),
        (None, "0" * 64, "/sha256"),
        (HEADER, "0" * 64, "/sha256"),
        ("sha-256=:AAAA:", None, "/Content-Digest"),
        ("sha-256=nonsense", None, "/Content-Digest"),
        ("md5=:AAAA:", None, "/Content-Digest"),
        (None, "0" * 63, "/sha256"),
    ],
)
def test_an_upload_with_another_checksum_leaves_nothing(
    digest, sha256, pointer: str, http: httpx.Client, gateway: GatewayProcess
) -> None:
    before = sorted(gateway.store.rglob("*"))
    response = upload(http, digest, sha256, content=ROWS)
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    assert sorted(gateway.store.rglob("*")) == before


def test_in_a_form_the_checksum_is_that_of_the_file(http: httpx.Client) -> None:
    assert upload(http, None, HEX, files={"file": ("a.jsonl", ROWS)}).status_code == 201
    assert upload(http, HEADER, files={"file": ("a.jsonl", ROWS)}).status_code == 422


def test_a_dataset_is_deleted_when_nobody_refers_to_it(http: httpx.Client, store: LocalArtifactStore) -> None:
    """Case 41: delete in use is 409, and says by whom."""
    first, second, suite = (upload(http, content=ROWS).json()["id"] for _ in range(3))
    sources = [{"dataset": first, "name": "a"}, {"dataset": second, "name": "b"}]
    composed = http.post("/v1/datasets", json={"sources": sources}).json()["id"]
    suites = [{"name": "other", "dataset": suite}]
    job = create(http, composed, evaluate={"suites": suites}).json()["id"]
    for dataset, user in ((first, composed), (second, composed), (composed, job), (suite, job)):
        refused = http.delete(f"/v1/datasets/{dataset}")
        assert (refused.status_code, user in refused.json()["detail"]) == (409, True)
        assert http.get(f"/v1/datasets/{dataset}").status_code == 200
    http.post(f"/v1/jobs/{job}/cancel")
    assert http.delete(f"/v1/jobs/{job}").status_code == 200
    for dataset in (composed, first, second, suite):
        gone = {"id": dataset, "object": "dataset", "deleted": True}
        assert http.delete(f"/v1/datasets/{dataset}").json() == gone
        assert http.get(f"/v1/datasets/{dataset}").status_code == 404
        assert http.delete(f"/v1/datasets/{dataset}").status_code == 404
        assert not store.exists(f"datasets/{dataset}")
    assert create(http, first).status_code == 422


def test_a_composed_dataset_keeps_its_files_by_itself(http: httpx.Client, store: LocalArtifactStore) -> None:
    source = upload(http, content=ROWS).json()["id"]
    composed = http.post("/v1/datasets", json={"sources": [{"dataset": source}]}).json()
    assert composed["files"][0]["dataset"] == source
    assert store.read(f"datasets/{composed['id']}/{composed['files'][0]['path']}") == ROWS
