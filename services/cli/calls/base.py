"""What all calls share: one request, its repeats, the pages of a list, and errors in sentences."""

import time
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

import httpx

from services.cli.errors import NotFound, Unreachable, error_of

TIMEOUT_S = 30.0
PAGE = 100
ATTEMPTS = 4
NO_SEGMENTS = frozenset({"", ".", ".."})
RETRIED = frozenset({429, 502, 503, 504})

JsonObject = dict[str, Any]


class Calls:
    """Requests to one gateway. Those that may be repeated are, for a few seconds, when it does not answer."""

    url: str
    retry_wait_s: float
    _http: httpx.Client

    def first_page(self, path: str, limit: int) -> list[JsonObject]:
        """The newest entries of a list, asked for once: for who cannot wait."""
        return cast("list[JsonObject]", _checked(self._http.get(path, params={"limit": limit})).json()["data"])

    def _list(
        self,
        path: str,
        limit: int,
        filters: Mapping[str, Any] | None = None,
        cursor: str = "id",
        page_size: int = PAGE,
    ) -> list[JsonObject]:
        """The first `limit` entries of a list; filters of None are left out."""
        found: list[JsonObject] = []
        params: dict[str, Any] = {name: value for name, value in (filters or {}).items() if value is not None}
        while len(found) < limit:
            page = self._get(path, params=params | {"limit": min(limit - len(found), page_size)})
            found += page["data"]
            if not page["has_more"]:
                break
            params["after"] = found[-1][cursor]
        return found

    def _get(self, path: str, **options: Any) -> JsonObject:
        return self._object("GET", path, repeat=True, headers={"Accept": "application/json"}, **options)

    def _delete(self, path: str) -> JsonObject:
        return self._object("DELETE", path)

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


def address(collection: str, *parts: str) -> str:
    """The path of a resource, such as `/v1/jobs/job_x`; whatever an id holds, it stays one segment.

    Raises:
        NotFound: an id is a word that leads to another path.
    """
    for part in parts:
        if part in NO_SEGMENTS:
            raise NotFound(f"there is nothing called {part!r}")
    return "/".join((f"/v1/{collection}", *(quote(part, safe="") for part in parts)))


def _try_again(response: httpx.Response) -> bool:
    """Tell whether a request is worth repeating: the gateway cannot work now, or still works on the first one."""
    return response.status_code in RETRIED or (response.status_code == 409 and "retry-after" in response.headers)


def _checked(response: httpx.Response) -> httpx.Response:
    if response.status_code >= 400:
        raise error_of(response)
    return response
