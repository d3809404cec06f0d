"""The API key goes to the gateway and to nobody else."""

import httpx
import pytest

from services.cli.client import EyrieClient
from services.cli.errors import BadInput, NotAllowed


def test_the_key_goes_to_the_gateway_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EYRIE_API_KEY", "a-key-0123456789")
    seen: dict[str, str | None] = {}

    def handler(request: httpx.Request) -> httpx.Response:
        seen[request.url.host] = request.headers.get("authorization")
        return httpx.Response(200, json={"id": "job_x"})

    with EyrieClient("http://gateway:8700/", transport=httpx.MockTransport(handler)) as client:
        client.get_job("job_x")
        client._http.get("http://elsewhere.example/file")
    assert seen == {"gateway": "Bearer a-key-0123456789", "elsewhere.example": None}


def test_a_refusal_says_where_the_key_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EYRIE_API_KEY", raising=False)
    answer = httpx.Response(401, json={"detail": "this needs an API key", "errors": []})
    with (
        EyrieClient("http://gateway", transport=httpx.MockTransport(lambda _: answer)) as client,
        pytest.raises(NotAllowed, match="--api-key-file") as caught,
    ):
        client.get_job("job_x")
    assert caught.value.exit_code == 6


def test_what_is_no_key_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EYRIE_API_KEY", "two words")
    with pytest.raises(BadInput, match="EYRIE_API_KEY holds no API key") as caught:
        EyrieClient("http://gateway")
    assert "two words" not in str(caught.value)
