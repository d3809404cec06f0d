"""The verifier's tokenizer over HTTP: how it renders conversations, and what ids mean. Nothing is generated.

`find_verifier` asks once, shortly, whether it is there; `TokenizerClient` does the work, in the child process.
"""

import asyncio
from typing import Any

import httpx

from services.gateway.inspection.documents import ServedVerifier
from shared.data.refusal import RowRejected
from shared.errors import VerifierError
from shared.schemas.manifest import canonical_digest
from shared.schemas.spec import VerifierSpec
from shared.served_models import name_of, served_models

PROBE_TIMEOUT_S = 3.0
TIMEOUT_S = 30.0
ATTEMPTS = 3
BACKOFF_S = 0.5
CONCURRENCY = 8
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
PROBE = {
    "messages": [{"role": "user", "content": "1 + 1 = ?"}, {"role": "assistant", "content": "2"}],
    "add_generation_prompt": False,
    "add_special_tokens": False,
}


def find_verifier(verifier: VerifierSpec, fleet_url: str | None) -> tuple[ServedVerifier | None, str | None]:
    """The verifier that can render for a request, or a sentence that says why there is none and what to do.

    Args:
        fleet_url: the fleet's own verifier, for requests that name no endpoint.
    """
    endpoint = (verifier.endpoint or fleet_url or "").rstrip("/")
    if not endpoint:
        return None, "no verifier is known to render rows: give verifier.endpoint, or EYRIE_VERIFIER_URL to the gateway"
    try:
        with httpx.Client(base_url=endpoint, timeout=PROBE_TIMEOUT_S, trust_env=False) as http:
            served = served_models(http.get("/v1/models").raise_for_status().json())
            name = name_of(served, verifier.model)
            if name is None:
                return None, (
                    f"the verifier at {endpoint} serves {', '.join(served) or 'nothing'}, the request is for "
                    f"{verifier.model}: give its preset, or verifier.model and verifier.endpoint"
                )
            rendered = http.post("/tokenize", json={"model": name, **PROBE}).raise_for_status()
            return ServedVerifier(endpoint=endpoint, model=name, template=canonical_digest(rendered.json())), None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, AttributeError) as error:
        reason = str(error) or type(error).__name__
        what_to_do = "start it, or give verifier.endpoint; then ask again"
        return None, f"the verifier at {endpoint} does not answer ({reason}): {what_to_do}"


class TokenizerClient:
    """Speaks to one verifier; use it as an async context manager."""

    def __init__(self, verifier: ServedVerifier) -> None:
        self.model = verifier.model
        self.endpoint = verifier.endpoint
        limits = httpx.Limits(max_connections=CONCURRENCY)
        self.http = httpx.AsyncClient(base_url=verifier.endpoint, limits=limits, timeout=TIMEOUT_S, trust_env=False)

    async def __aenter__(self) -> "TokenizerClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        """Token ids of a conversation or a text; `shared.data.rendering` makes the bodies.

        Raises:
            RowRejected: the verifier refuses this one.
            VerifierError: it does not answer.
        """
        return [int(token) for token in await self._ask("/tokenize", body, "tokens", list)]

    async def text(self, token_ids: list[int]) -> str:
        """What ids say; where they end within a character, that one shows as a replacement.

        Raises:
            RowRejected, VerifierError: as `tokenize`.
        """
        return str(await self._ask("/detokenize", {"tokens": token_ids}, "prompt", str)) if token_ids else ""

    async def _ask(self, path: str, body: dict[str, Any], field: str, kind: type) -> Any:
        problem = ""
        for attempt in range(ATTEMPTS):
            await asyncio.sleep(attempt * BACKOFF_S)
            try:
                response = await self.http.post(path, json={"model": self.model, **body})
                if response.is_success and isinstance(answer := response.json().get(field), kind):
                    return answer
            except (httpx.TransportError, ValueError, AttributeError) as error:
                problem = str(error) or type(error).__name__
                continue
            problem = f"{response.status_code}: {response.text[:300]}"
            if response.is_client_error and response.status_code not in RETRIED:
                raise RowRejected(f"refused_{response.status_code}", f"the verifier refused it, {problem}")
        raise VerifierError(f"the verifier does not answer {path}, {problem}", where=self.endpoint)
