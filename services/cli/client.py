"""A small client of the REST API: each call gives the parsed JSON, or raises an `ApiError`."""

from types import TracebackType
from typing import Self

import httpx

from services.cli.calls.access import AccessCalls
from services.cli.calls.base import TIMEOUT_S, JsonObject
from services.cli.calls.datasets import DatasetCalls
from services.cli.calls.drafts import DraftCalls
from services.cli.calls.fleet import FleetCalls
from services.cli.calls.jobs import JobCalls
from services.cli.calls.streams import StreamCalls
from services.cli.credentials import key_for
from services.cli.errors import ApiError, BadInput

__all__ = ["DEFAULT_URL", "ApiError", "EyrieClient", "JsonObject"]

DEFAULT_URL = "http://127.0.0.1:8700"
RETRY_WAIT_S = 1.0


class EyrieClient(JobCalls, StreamCalls, DatasetCalls, DraftCalls, FleetCalls, AccessCalls):
    """Speaks to one gateway. Calls that may be repeated are, for a few seconds, when the gateway does not answer.

    The API key comes from `services.cli.credentials`, and goes to no other server than the one of `url`.

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
        require_url(self.url)
        self._http = httpx.Client(base_url=self.url, timeout=timeout, transport=transport, auth=key_for(self.url))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def require_url(url: str) -> None:
    """Refuse what is no address of a gateway: waiting does not help it.

    Raises:
        BadInput
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise BadInput(f"{url!r} is no URL: {error}; --url and EYRIE_URL look like {DEFAULT_URL}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadInput(f"{url!r} is no URL of a gateway: --url and EYRIE_URL look like {DEFAULT_URL}")
