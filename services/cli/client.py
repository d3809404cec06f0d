"""A small client of the REST API: each call gives the parsed JSON, or raises an `ApiError`."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

import httpx

from services.cli.download import Advance, fetch_file, require_own_files
from services.cli.errors import ApiError, Unreachable, error_of
from services.cli.folder_archive import FolderArchive

__all__ = ["DEFAULT_URL", "ApiError", "EyrieClient", "JsonObject"]

DEFAULT_URL = "http://127.0.0.1:8700"
TIMEOUT_S = 30.0
PAGE = 100
INSPECTION_WAIT_S = 2.0  # an answer so often is progress to show
ATTEMPTS = 4
RETRY_WAIT_S = 1.0
RETRIED = frozenset({429, 502, 503, 504})

JsonObject = dict[str, Any]


class EyrieClient:
    """Speaks to one gateway. Calls that may be repeated are, for a few seconds, when the gateway does not answer.

    Args:
        transport: where requests go instead of the network; for tests.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout: float = TIMEOUT_S,
        retry_wait_s: float = RETRY_WAIT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.retry_wait_s = retry_wait_s
        try:
            self._http = httpx.Client(base_url=self.url, timeout=timeout, transport=transport)
        except httpx.InvalidURL as error:
            raise Unreachable(f"{url!r} is not a URL: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def upload_dataset(self, path: Path, name: str | None = None) -> JsonObject:
        """Upload a file of prompts, conversations or token ids (JSONL, plain or gzip, or Parquet), or a folder.

        Raises:
            ApiError
            OSError: the file cannot be read.
        """
        if path.is_dir():
            return self.upload_folder(path, name)
        with path.open("rb") as file:
            return self._object(
                "POST",
                "/v1/datasets",
                params={"name": name or path.name},
                content=_pieces(file),
                headers={"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)},
                timeout=httpx.Timeout(TIMEOUT_S, read=600),
            )

    def upload_folder(self, folder: Path, name: str | None = None) -> JsonObject:
        """Upload a folder of ready-made rows, or of a vocabulary.

        Raises:
            ApiError
            OSError: a file cannot be read.
        """
        archive = FolderArchive(folder)
        return self._object(
            "POST",
            "/v1/datasets",
            params={"name": name or folder.resolve().name},
            content=iter(archive),
            headers={"Content-Type": "application/x-tar", "Content-Length": str(archive.size)},
            timeout=httpx.Timeout(TIMEOUT_S, read=600),
        )

    def compose_dataset(self, sources: list[JsonObject], name: str | None = None) -> JsonObject:
        """Make a dataset of uploaded ones: each with `dataset`, and perhaps `name` and `weight`."""
        document = {"sources": sources} | ({"name": name} if name else {})
        return self._object("POST", "/v1/datasets", json=document)

    def list_datasets(self, limit: int = PAGE) -> list[JsonObject]:
        """The newest `limit` datasets."""
        return self._list("/v1/datasets", limit)

    def get_dataset(self, dataset_id: str) -> JsonObject:
        """One dataset."""
        return self._get(f"/v1/datasets/{quote(dataset_id, safe='')}")

    def inspect_dataset(self, dataset_id: str, body: JsonObject, wait_s: float = INSPECTION_WAIT_S) -> JsonObject:
        """What a job would make of a dataset: finished, or, after `wait_s`, running; ask again with the same body."""
        path = f"/v1/datasets/{quote(dataset_id, safe='')}/inspect"
        return self._object("POST", path, json=body, params={"wait_s": wait_s}, repeat=True)

    def create_job(self, document: JsonObject, idempotency_key: str | None = None) -> JsonObject:
        """Submit a job document; sent again under one key until there is an answer, it makes one job."""
        key = idempotency_key or str(uuid.uuid4())
        return self._object("POST", "/v1/jobs", json=document, headers={"Idempotency-Key": key}, repeat=True)

    def plan_job(self, document: JsonObject) -> JsonObject:
        """What a job document would need, and every problem with it; nothing is started."""
        return self._object("POST", "/v1/jobs/plan", json=document, repeat=True)

    def list_jobs(self, limit: int = PAGE, status: str | None = None, preset: str | None = None) -> list[JsonObject]:
        """The newest `limit` jobs that match."""
        return self._list("/v1/jobs", limit, status=status, preset=preset)

    def get_job(self, job_id: str) -> JsonObject:
        """A job as it is now."""
        return self._get(_job(job_id))

    def ask(self, job_id: str, action: str) -> JsonObject:
        """Pause, resume, cancel or retry a job; the job as it is then (for `retry`: the new one)."""
        return self._object("POST", f"{_job(job_id)}/{action}", repeat=True)

    def list_events(self, job_id: str, after: str | None = None, limit: int = PAGE) -> list[JsonObject]:
        """The `limit` events that follow the event `after`, oldest first."""
        return self._list(f"{_job(job_id)}/events", limit, after=after)

    def get_logs(self, job_id: str, stage: str | None = None, tail: int = 1000) -> str:
        """What the stages' processes wrote."""
        params = {"tail": tail} | ({"stage": stage} if stage else {})
        return self._request("GET", f"{_job(job_id)}/logs", params=params, repeat=True).text

    def list_artifacts(self, job_id: str) -> list[JsonObject]:
        """Files of the job's finished stages."""
        return cast("list[JsonObject]", self._get(f"{_job(job_id)}/artifacts")["data"])

    def list_rows(self, job_id: str, limit: int = PAGE, split: str | None = None) -> list[JsonObject]:
        """The first `limit` rows of a job."""
        return self._list(f"{_job(job_id)}/rows", limit, cursor="row_id", split=split)

    def get_row(self, job_id: str, row_id: str) -> JsonObject:
        """One row with its mask."""
        return self._get(f"{_job(job_id)}/rows/{quote(row_id, safe='')}")

    def list_presets(self) -> list[JsonObject]:
        """The presets."""
        return cast("list[JsonObject]", self._get("/v1/presets")["data"])

    def list_drafts(self, limit: int = PAGE) -> list[JsonObject]:
        """The newest `limit` drafts."""
        return self._list("/v1/drafts", limit)

    def get_draft(self, draft_id: str) -> JsonObject:
        """One draft with its evaluation."""
        return self._get(f"/v1/drafts/{quote(draft_id, safe='')}")

    def get_lineage(self, draft_id: str, *, rehash: bool = False) -> JsonObject:
        """What a draft was made from; with `rehash` the gateway reads every file again, however long that takes."""
        path = f"/v1/drafts/{quote(draft_id, safe='')}/lineage"
        timeout = httpx.Timeout(TIMEOUT_S, read=None if rehash else TIMEOUT_S)
        return self._get(path, params={"verify": "full" if rehash else "sizes"}, timeout=timeout)

    def list_draft_files(self, draft_id: str) -> list[JsonObject]:
        """Files of a draft."""
        return cast("list[JsonObject]", self._get(f"/v1/drafts/{quote(draft_id, safe='')}/files")["data"])

    def download_draft(self, draft_id: str, folder: Path, advance: Advance | None = None) -> list[Path]:
        """Bring all files of a draft into `folder`, each checked against its SHA-256.

        What is there already is kept, and what was broken off goes on where it ended. Nothing is overwritten: where a
        file of other content is in the way, nothing is downloaded.

        Raises:
            ApiError
            OSError: a file cannot be written.
        """
        files = self.list_draft_files(draft_id)
        require_own_files(files, folder)
        return [fetch_file(self._http, file, folder, advance) for file in files]

    def collect_garbage(self, *, apply: bool, retention_days: float | None = None) -> JsonObject:
        """What nothing refers to any more; with `apply` it is removed, which may take a while."""
        body = {"apply": apply, "retention_days": retention_days}
        return self._object("POST", "/v1/gc", json=body, timeout=httpx.Timeout(TIMEOUT_S, read=3600))

    def _list(self, path: str, limit: int, cursor: str = "id", **filters: str | None) -> list[JsonObject]:
        found: list[JsonObject] = []
        params: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
        while len(found) < limit:
            page = self._get(path, params=params | {"limit": min(limit - len(found), PAGE)})
            found += page["data"]
            if not page["has_more"]:
                break
            params["after"] = found[-1][cursor]
        return found

    def _get(self, path: str, **options: Any) -> JsonObject:
        return self._object("GET", path, repeat=True, **options)

    def _object(self, method: str, path: str, **options: Any) -> JsonObject:
        response = self._request(method, path, **options)
        try:
            return cast("JsonObject", response.json())
        except ValueError:
            raise error_of(response) from None

    def _request(self, method: str, path: str, *, repeat: bool = False, **options: Any) -> httpx.Response:
        for left in reversed(range(ATTEMPTS if repeat else 1)):
            try:
                response = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if not left:
                    raise self._unreachable(error) from None
            else:
                if not (left and _try_again(response)):
                    return _checked(response)
            time.sleep(self.retry_wait_s)
        raise AssertionError("not reached")

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        reason = str(error) or type(error).__name__
        return Unreachable(
            f"the gateway at {self.url} does not answer ({reason}): is it running? --url or EYRIE_URL names another"
        )


def _try_again(response: httpx.Response) -> bool:
    """Tell whether a request is worth repeating: the gateway cannot work now, or still works on the first one."""
    return response.status_code in RETRIED or (response.status_code == 409 and "retry-after" in response.headers)


def _checked(response: httpx.Response) -> httpx.Response:
    if response.status_code >= 400:
        raise error_of(response)
    return response


def _job(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _pieces(file: Any) -> Iterator[bytes]:
    while piece := file.read(1 << 18):
        yield piece
