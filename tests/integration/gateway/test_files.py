"""Artifacts and drafts over HTTP: what manifests name can be had, by ranges too; nothing else can."""

import base64
import hashlib
from pathlib import Path

import httpx
import pytest

from services.cli.client import ApiError, EyrieClient
from shared.artifact_store import LocalArtifactStore
from shared.ids import new_id
from shared.job_store import JobStore
from shared.schemas.job import JobRecord, JobStatus, Stage, StageStatus, now
from shared.schemas.manifest import FileEntry, Manifest
from shared.schemas.registry import DraftRecord
from tests.support.gateway_process import GatewayProcess

FILES = {"config.json": b'{"a": 1}', "model.safetensors": bytes(range(256)) * 5000, "logs/note.txt": b"fine\n"}


@pytest.fixture
def draft(http: httpx.Client, dataset: str, jobs: JobStore, store: LocalArtifactStore) -> DraftRecord:
    """A job that has succeeded with a published draft."""
    job_id = http.post("/v1/jobs", json={"data": {"dataset": dataset}}).json()["id"]
    root = f"stages/publish/{job_id}/out"
    for name, content in FILES.items():
        store.write(f"{root}/{name}", content)
    manifest = Manifest(
        stage=Stage.PUBLISH,
        key="k",
        token="t",
        job_id=job_id,
        root=root,
        inputs={},
        parameters={},
        files=[
            FileEntry(path=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in FILES.items()
        ],
        seconds=1,
        created_at=now(),
    )
    key = f"stages/publish/{job_id}/manifest.json"
    store.write(key, manifest.model_dump_json().encode())
    record = DraftRecord(
        id=new_id("draft"),
        job_id=job_id,
        verifier="v",
        algorithm="eagle3",
        root=root,
        manifest=key,
        bytes=sum(map(len, FILES.values())),
        created_at=now(),
    )
    store.write(f"drafts/{record.id}.json", record.model_dump_json().encode())

    def succeed(job: JobRecord) -> None:
        job.status, job.draft = JobStatus.SUCCEEDED, record.id
        job.stage(Stage.PUBLISH).status = StageStatus.SUCCEEDED
        job.stage(Stage.PUBLISH).manifest = key

    jobs.update(job_id, lambda job: setattr(job, "status", JobStatus.RUNNING))
    jobs.update(job_id, succeed)
    return record


def test_artifacts_are_listed_and_downloaded(http: httpx.Client, draft: DraftRecord) -> None:
    (left,) = http.get(f"/v1/jobs/{draft.job_id}").json()["artifacts"]
    assert left["stage"] == "publish"
    files = http.get(left["url"]).json()["data"]
    assert http.get(f"/v1/jobs/{draft.job_id}/artifacts").json()["data"] == files
    assert http.get(f"/v1/jobs/{draft.job_id}/artifacts", params={"stage": "train"}).json()["data"] == []
    assert [file["path"] for file in files] == [f"publish/{name}" for name in FILES]
    for file, content in zip(files, FILES.values(), strict=True):
        response = http.get(file["url"])
        assert response.content == content
        assert response.headers["etag"] == f'"{hashlib.sha256(content).hexdigest()}"'
        assert file["size"] == len(content)


def test_drafts_are_listed_shown_and_downloaded_by_ranges(http: httpx.Client, draft: DraftRecord) -> None:
    assert http.get("/v1/drafts").json()["data"][0]["id"] == draft.id
    shown = http.get(f"/v1/drafts/{draft.id}").json()
    assert shown["gate"] == "none"
    assert "root" not in shown
    address = f"/v1/drafts/{draft.id}/files/model.safetensors"
    part = http.get(address, headers={"Range": "bytes=1000-1999"})
    assert (part.status_code, part.content) == (206, FILES["model.safetensors"][1000:2000])
    tag = part.headers["etag"]
    assert http.get(address, headers={"If-None-Match": tag}).status_code == 304
    other = http.get(address, headers={"Range": "bytes=5-9", "If-Range": '"other"'})
    assert (other.status_code, len(other.content)) == (200, len(FILES["model.safetensors"]))
    assert http.head(address).headers["content-length"] == str(len(FILES["model.safetensors"]))


TRAVERSALS = [
    "../manifest.json",
    "%2e%2e/manifest.json",
    "%2e%2e%2fmanifest.json",
    "%252e%252e%252fmanifest.json",
    "..%5cmanifest.json",
    "%2fetc%2fpasswd",
    "/etc/passwd",
    "config.json%00",
    "config.json;x",
    "./config.json",
    "logs",
    "",
]


@pytest.mark.parametrize("path", TRAVERSALS)
def test_a_path_that_no_manifest_names_is_404(path: str, gateway: GatewayProcess, draft: DraftRecord) -> None:
    for base in (f"/v1/drafts/{draft.id}/files/", f"/v1/jobs/{draft.job_id}/artifacts/publish/"):
        assert raw_status(gateway.url, base + path) == 404


def test_a_link_out_of_the_store_is_404(
    http: httpx.Client, draft: DraftRecord, gateway: GatewayProcess, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    place = gateway.store / draft.root / "config.json"
    place.unlink()
    place.symlink_to(secret)
    response = http.get(f"/v1/drafts/{draft.id}/files/config.json")
    assert (response.status_code, "secret" in response.text) == (404, False)


def test_a_download_is_checked_and_goes_on_where_it_ended(
    gateway: GatewayProcess, draft: DraftRecord, tmp_path: Path
) -> None:
    for name, begun in {"model.safetensors": FILES["model.safetensors"][:70_000], "config.json": b"damaged!"}.items():
        digest = hashlib.sha256(FILES[name]).hexdigest()
        (tmp_path / f".{name}.{digest[:12]}.part").write_bytes(begun)
    seen: list[tuple[str, int]] = []
    with EyrieClient(gateway.url) as client:
        client.download_draft(draft.id, tmp_path, lambda path, done, total: seen.append((path, done)))
    assert {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == FILES
    arrived = sum(1 for path, _ in seen if path == "model.safetensors")
    assert arrived
    with EyrieClient(gateway.url) as client:
        seen.clear()
        client.download_draft(draft.id, tmp_path, lambda path, done, total: seen.append((path, done)))
    assert seen == []


def test_a_damaged_file_is_never_taken(gateway: GatewayProcess, draft: DraftRecord, tmp_path: Path) -> None:
    (gateway.store / draft.root / "config.json").write_bytes(b'{"a": 2}')
    with EyrieClient(gateway.url) as client, pytest.raises(ApiError, match=r"config\.json"):
        client.download_draft(draft.id, tmp_path)
    assert not (tmp_path / "config.json").exists()


def raw_status(url: str, path: str) -> int:
    """The status of a request whose path is sent as it is."""
    import socket
    from urllib.parse import urlsplit

    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head = connection.makefile("rb").readline()
    return int(head.split()[1])


@pytest.mark.data
def test_the_draft_of_an_unfinished_job_is_a_conflict_and_of_a_finished_one_its_draft(
    http: httpx.Client, dataset: str, draft: DraftRecord
) -> None:
    job_id = http.post("/v1/jobs", json={"data": {"dataset": dataset}}).json()["id"]
    for path in ("draft", "artifacts/publish/model.safetensors", "artifacts/train/draft/config.json"):
        response = http.get(f"/v1/jobs/{job_id}/{path}")
        assert response.status_code == 409, path
        assert response.headers["content-type"] == "application/problem+json"
        assert "queued" in response.json()["detail"]
    assert http.get(f"/v1/jobs/{job_id}/artifacts/nonsense/x").status_code == 404
    assert http.get(f"/v1/jobs/{draft.job_id}/draft").json()["id"] == draft.id
    assert http.get(f"/v1/jobs/{draft.job_id}/artifacts/publish/gone").status_code == 404


def test_conditions_and_digests_of_a_download(http: httpx.Client, draft: DraftRecord) -> None:
    content = FILES["model.safetensors"]
    digest = hashlib.sha256(content)
    tag, whole = f'"{digest.hexdigest()}"', f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    address = f"/v1/drafts/{draft.id}/files/model.safetensors"
    for method in ("GET", "HEAD"):
        full = http.request(method, address)
        assert (full.headers["content-digest"], full.headers["repr-digest"]) == (whole, whole)
        assert http.request(method, address, headers={"If-None-Match": f'"x", W/{tag}'}).status_code == 304
        assert http.request(method, address, headers={"If-Match": f'"x", {tag}'}).status_code == 200
        assert http.request(method, address, headers={"If-Match": '"x"'}).status_code == 412
        assert http.request(method, address, headers={"If-Match": f"W/{tag}"}).status_code == 412  # never equal
    ranged = {"Range": "bytes=5-9", "If-Range": tag, "If-Match": tag}
    part = http.get(address, headers=ranged)
    assert (part.status_code, part.headers["content-range"]) == (206, f"bytes 5-9/{len(content)}")
    assert (part.headers.get("content-digest"), part.headers["repr-digest"]) == (None, whole)
    for ignored in (http.head(address, headers=ranged), http.get(address, headers={"Range": "lines=1-2"})):
        assert (ignored.status_code, ignored.headers["content-digest"]) == (200, whole)


@pytest.mark.parametrize(
    ("headers", "status", "pointer"),
    [
        ({"If-Match": '"x"'}, 412, "/If-Match"),
        ({"Range": "bytes=9999999-"}, 416, "/Range"),
        ({"Range": "bytes=5-2"}, 400, "/Range"),
        ({"Range": "bytes=a-b"}, 400, "/Range"),
    ],
)
def test_a_download_that_cannot_be_is_a_problem(
    headers: dict[str, str], status: int, pointer: str, http: httpx.Client, draft: DraftRecord
) -> None:
    response = http.get(f"/v1/jobs/{draft.job_id}/artifacts/publish/config.json", headers=headers)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    (error,) = response.json()["errors"]
    assert (error["source"], error["pointer"]) == ("header", pointer)
    if status == 416:
        assert response.headers["content-range"] == "bytes */8"
