"""The client over a transport of the test's own: repeats what may be repeated, checks what it downloads."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from services.cli.client import EyrieClient
from services.cli.errors import ApiError, BadInput, Conflict, NotFound, Unreachable

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler) -> EyrieClient:
    return EyrieClient("http://gateway", retry_wait_s=0, transport=httpx.MockTransport(handler))


def problem(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"detail": "told so", "errors": []}, headers=headers)


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, BadInput, 2),
        (404, NotFound, 4),
        (409, Conflict, 5),
        (413, BadInput, 2),
        (422, BadInput, 2),
        (429, Unreachable, 3),
        (500, Unreachable, 3),
        (503, Unreachable, 3),
    ],
)
def test_each_status_has_its_error(status: int, kind: type[ApiError], code: int) -> None:
    with client(lambda _: problem(status)) as api, pytest.raises(kind, match="told so") as caught:
        api.get_job("job_x")
    assert caught.value.exit_code == code


def test_what_is_no_gateway_is_said() -> None:
    for response in (httpx.Response(404, text="<html>"), httpx.Response(200, text="hello")):
        with client(lambda _, r=response: r) as api, pytest.raises(Unreachable, match="not as an Eyrie gateway"):
            api.get_job("job_x")


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8700", "localhost", "ftp://gateway", "http://", "http://[::1", "file:///x"]
)
def test_what_is_no_url_is_bad_input_at_once(url: str) -> None:
    with pytest.raises(BadInput, match="EYRIE_URL look like http://"):
        EyrieClient(url)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_word_that_leads_elsewhere_asks_for_nothing(name: str) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    with client(refuse) as api:
        for call in (
            api.get_job,
            api.delete_draft,
            api.list_draft_files,
            lambda part: api.untag_draft("draft_x", part),
        ):
            with pytest.raises(NotFound, match="nothing called"):
                call(name)


def test_a_submission_is_repeated_under_one_key_until_it_is_answered() -> None:
    keys: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        answers = [httpx.ConnectError("refused"), problem(503), problem(409, **{"retry-after": "1"})]
        if len(keys) > len(answers):
            return httpx.Response(201, json={"id": "job_x"})
        answer = answers[len(keys) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    with client(handler) as api:
        assert api.create_job({})["id"] == "job_x"
    assert len(keys) == 4
    assert len(set(keys)) == 1


def test_an_upload_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("{}\n")
    calls: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path)
        return problem(503)

    with client(handler) as api, pytest.raises(Unreachable):
        api.upload_dataset(path)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_upload_carries_the_checksum_of_what_is_sent(kind: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "p.jsonl"
    path.write_text("{}\n" * 1000)

    def handler(request: httpx.Request) -> httpx.Response:
        digest = base64.b64encode(hashlib.sha256(request.read()).digest()).decode()
        return httpx.Response(201, json={"same": request.headers["content-digest"] == f"sha-256=:{digest}:"})

    with client(handler) as api:
        assert api.upload_dataset(path if kind == "file" else path.parent) == {"same": True}


def test_lists_go_over_pages_up_to_the_limit() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        first = int(request.url.params.get("after", "-1")) + 1
        ids = range(first, first + int(request.url.params["limit"]))
        return httpx.Response(200, json={"data": [{"id": str(i)} for i in ids], "has_more": True})

    with client(handler) as api:
        assert [int(job["id"]) for job in api.list_jobs(250)] == list(range(250))


CONTENT = bytes(range(256)) * 40


def serving(content: bytes, path: str = "model.bin") -> Handler:
    """A draft of one file; every answer but the last breaks off."""

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/files"):
            entry = {"path": path, "size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest(), "url": "/f"}
            return httpx.Response(200, json={"data": [entry]})
        start = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))

        def pieces():
            yield content[start : start + 3000]
            if start + 3000 < len(content):
                raise httpx.ReadError("cut")

        return httpx.Response(206 if start else 200, content=pieces())

    return handler


def test_a_download_that_breaks_off_goes_on(tmp_path: Path) -> None:
    with client(serving(CONTENT)) as api:
        assert api.download_draft("draft_x", tmp_path) == [tmp_path / "model.bin"]
    assert (tmp_path / "model.bin").read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [tmp_path / "model.bin"]


@pytest.mark.data
@pytest.mark.parametrize("other", ["a file", "a folder", "a link to nowhere"])
def test_a_download_never_overwrites_what_is_in_its_way(other: str, tmp_path: Path) -> None:
    target = tmp_path / "model.bin"
    match other:
        case "a file":
            target.write_bytes(b"mine")
        case "a folder":
            target.mkdir()
        case _:
            target.symlink_to(tmp_path / "nowhere")
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return serving(CONTENT)(request)

    with client(handler) as api, pytest.raises(Conflict, match="nothing is overwritten"):
        api.download_draft("draft_x", tmp_path)
    assert len(asked) == 1  # the list of files, and no file
    assert list(tmp_path.iterdir()) == [target]
    assert not target.is_file() or target.read_bytes() == b"mine"


@pytest.mark.data
def test_a_second_download_of_the_same_asks_for_no_file_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return serving(CONTENT)(request)

    with client(handler) as api:
        api.download_draft("draft_x", tmp_path)
        asked.clear()
        api.download_draft("draft_x", tmp_path)
    assert asked == ["/v1/drafts/draft_x/files"]


@pytest.mark.data
def test_a_file_that_comes_while_a_download_runs_is_not_overwritten(tmp_path: Path) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/files"):
            (tmp_path / "model.bin").write_bytes(b"mine")
        return serving(CONTENT)(request)

    with client(handler) as api, pytest.raises(Conflict):
        api.download_draft("draft_x", tmp_path)
    assert (tmp_path / "model.bin").read_bytes() == b"mine"


def test_damaged_bytes_never_get_the_files_name(tmp_path: Path) -> None:
    with client(serving(CONTENT[:-1] + b"!")) as api, pytest.raises(Unreachable, match=r"model\.bin"):
        api.download_draft("draft_x", tmp_path)
    assert not (tmp_path / "model.bin").exists()


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a\\..\\x", "", "a\0"])
def test_a_path_that_leaves_the_folder_is_refused(path: str, tmp_path: Path) -> None:
    with client(serving(CONTENT, path)) as api, pytest.raises(BadInput, match="outside"):
        api.download_draft("draft_x", tmp_path / "to")
    assert not list(tmp_path.rglob("x"))
