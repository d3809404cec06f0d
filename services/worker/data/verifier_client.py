"""The verifier over HTTP: answers with the exact token ids it read and wrote, and the files of its hidden states.

Every request carries `X-Request-Id` (attempt, row), from which vLLM names its hidden-state files. Failures that may
pass are tried again a bounded number of times, honouring Retry-After; a request that the verifier refuses is not; and
after `BREAKER_FAILURES` requests in a row have failed for good, the verifier is taken for down.
"""

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from services.worker.data.request_times import RequestTimes
from services.worker.data.verifier_failures import backoff, error_text, refusal_reason, retry_after
from shared.data.refusal import RowRejected
from shared.data.rendering import split_reasoning
from shared.errors import UserError, VerifierError
from shared.schemas.spec import SamplingSpec
from shared.served_models import name_of, served_models

ATTEMPTS = 5
BREAKER_FAILURES = 8
CONNECT_TIMEOUT_S = 10.0
ENDPOINTS = {
    "models": ("GET", "/v1/models"),
    "chat": ("POST", "/v1/chat/completions"),
    "completion": ("POST", "/v1/completions"),
    "prefill": ("POST", "/v1/completions"),
    "tokenize": ("POST", "/tokenize"),
}
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
UNUSABLE_REASONS = frozenset({"content_filter", "abort", "error"})


class RowRefused(RowRejected):
    """The verifier will not answer this row, however often it is asked; `reason` is a short name for the count.

    Attributes:
        states: file of hidden states that came with an answer that cannot be used.
    """

    states: Path | None = None


@dataclass(frozen=True)
class Completion:
    """One answer.

    Attributes:
        prompt_ids, answer_ids: token ids as the verifier read and wrote them.
        content, reasoning: the same as text, the closing tag removed.
        tool_calls: as the verifier returned them.
        finish_reason: `stop`, `length`, ...
        states: file with hidden states of all ids but the last, when they were captured.
    """

    prompt_ids: list[int]
    answer_ids: list[int]
    content: str
    reasoning: str
    tool_calls: list[Any]
    finish_reason: str
    states: Path | None = None


class VerifierClient:
    """Speaks to one endpoint; use it as an async context manager.

    Args:
        endpoint: base URL without /v1.
        model: name to send, or None for whatever is served.
        exchange: folder that is shared with the verifier.
        timeout_s: seconds that one answer may take.
        times: told how long each request took; flushed at the end of the context.
    """

    def __init__(
        self,
        endpoint: str,
        model: str | None,
        exchange: Path,
        concurrency: int,
        timeout_s: float = 3600.0,
        times: RequestTimes | None = None,
    ) -> None:
        self.times = times or RequestTimes(lambda _: None)
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        self.http = httpx.AsyncClient(base_url=endpoint.rstrip("/"), limits=limits, timeout=timeout, trust_env=False)
        self.endpoint, self.model, self.exchange = endpoint, model, exchange
        self.failures_in_a_row = 0
        self.gave_ids = False

    async def __aenter__(self) -> "VerifierClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        self.times.flush()

    async def check_model(self) -> str:
        """Make sure that the endpoint is up and serves `model`; return the name to use.

        Raises:
            VerifierError: it does not answer.
            UserError: it serves something else.
        """
        try:
            body = await self._send("models", "models", None)
        except RowRefused as refusal:
            raise VerifierError(refusal.message, where=self.endpoint) from None
        served = served_models(body)
        name = name_of(served, self.model)
        if name is not None:
            return name
        raise UserError(
            f"the verifier serves {', '.join(served) or 'nothing'}, the job wants {self.model}",
            where=self.endpoint,
            hint="give the model that runs there, or another endpoint",
        )

    async def chat(
        self,
        messages: list[dict[str, Any]],
        sampling: SamplingSpec,
        *,
        request_id: str,
        seed: int | None = None,
        tools: list[Any] | None = None,
        capture: bool = False,
    ) -> Completion:
        """Have the verifier answer a conversation.

        Args:
            capture: keep the hidden states of the prompt and of all answered tokens but the last.

        Raises:
            RowRefused: it will not answer, or its answer cannot be used.
            VerifierError: it is down.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "return_token_ids": True,
            "chat_template_kwargs": {"thinking": sampling.thinking},
        }
        if seed is not None:
            body["seed"] = seed
        if tools:
            body["tools"] = tools
        if capture:
            body["kv_transfer_params"] = {"include_output_tokens": True}
        answer = await self._send("chat", request_id, body)
        try:
            completion = self._completion(answer)
        except RowRefused as refusal:
            refusal.states = self._named_states(answer, request_id)
            raise
        return replace(completion, states=self._states(answer, request_id)) if capture else completion

    async def continue_ids(self, token_ids: list[int], sampling: SamplingSpec, *, request_id: str) -> list[int]:
        """Have the verifier go on after `token_ids`; return the ids that it wrote.

        Raises:
            RowRefused, VerifierError
        """
        body = {
            "model": self.model,
            "prompt": token_ids,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "return_token_ids": True,
        }
        choices = (await self._send("completion", request_id, body)).get("choices")
        if not choices or not isinstance(choices[0].get("token_ids"), list):
            raise RowRefused("bad_answer", "the verifier's answer holds no token ids")
        return [int(token) for token in choices[0]["token_ids"]]

    async def prefill(self, token_ids: list[int], *, request_id: str) -> Path | None:
        """Have the verifier read `token_ids`; return the file with their hidden states, one for each id.

        None: the verifier names a file of another request, which is left alone.

        Raises:
            RowRefused, VerifierError
        """
        body = {"model": self.model, "prompt": token_ids, "max_tokens": 1, "return_token_ids": True}
        return self._states(await self._send("prefill", request_id, body), request_id)

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        """Token ids of a rendered conversation or of bare text; see `shared.data.rendering` for the body.

        Raises:
            RowRefused, VerifierError
        """
        answer = await self._send("tokenize", "tokenize", {"model": self.model, **body})
        if not isinstance(answer.get("tokens"), list):
            raise RowRefused("bad_answer", "the verifier's answer to /tokenize holds no tokens")
        return [int(token) for token in answer["tokens"]]

    async def _send(self, kind: str, request_id: str, body: dict[str, Any] | None) -> dict[str, Any]:
        for attempt in range(1, ATTEMPTS + 1):
            wait: float | None = None
            try:
                response = await self._try(kind, request_id, body)
                if response.is_success:
                    self.failures_in_a_row = 0
                    return _json_object(response)
                problem = f"{response.status_code}: {error_text(response)}"
                if response.status_code not in RETRIED:
                    self.failures_in_a_row = 0
                    raise RowRefused(refusal_reason(response), f"the verifier refused it, {problem}")
                wait = retry_after(response)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__} {error}".strip()
            self._check_breaker(problem)
            if attempt < ATTEMPTS:
                await asyncio.sleep(wait if wait is not None else backoff(attempt))
        self.failures_in_a_row += 1
        self._check_breaker(problem)
        raise RowRefused("verifier_failed", f"the verifier did not answer in {ATTEMPTS} attempts, {problem}")

    async def _try(self, kind: str, request_id: str, body: dict[str, Any] | None) -> httpx.Response:
        method, path = ENDPOINTS[kind]
        started, outcome = time.monotonic(), "failed"
        try:
            response = await self.http.request(method, path, json=body, headers={"X-Request-Id": request_id})
            if response.status_code not in RETRIED:
                outcome = "ok" if response.is_success else "refused"
            return response
        finally:
            self.times.add(kind, outcome, time.monotonic() - started)

    def _check_breaker(self, problem: str) -> None:
        if self.failures_in_a_row >= BREAKER_FAILURES:
            raise VerifierError(
                f"the verifier failed {self.failures_in_a_row} requests in a row, last: {problem}",
                where=self.endpoint,
                hint="look after the verifier and submit the job again: the rows made so far are kept",
            )

    def _completion(self, body: dict[str, Any]) -> Completion:
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            raise RowRefused("no_choices", "the verifier's answer has no choices")
        reason = str(choice.get("finish_reason") or "unknown")
        if reason in UNUSABLE_REASONS:
            raise RowRefused(reason, f"the verifier ended the answer with {reason}")
        prompt_ids, answer_ids = body.get("prompt_token_ids"), choice.get("token_ids")
        if not prompt_ids or answer_ids is None:
            if self.gave_ids:
                raise RowRefused("no_token_ids", "the verifier's answer holds no token ids, earlier ones did")
            raise VerifierError(
                "the verifier's answer holds no token ids",
                where=self.endpoint,
                hint="it must honour `return_token_ids`: use vLLM 0.32 or later",
            )
        self.gave_ids = True
        message = choice.get("message") or {}
        content, reasoning = split_reasoning(message)
        calls = message.get("tool_calls") or []
        return Completion(list(prompt_ids), list(answer_ids), content, reasoning, calls, reason)

    def _states(self, body: dict[str, Any], request_id: str) -> Path | None:
        if not isinstance((body.get("kv_transfer_params") or {}).get("hidden_states_path"), str):
            raise VerifierError(
                "the verifier answered without hidden states",
                where=self.endpoint,
                hint="start it with capture on: EYRIE_VERIFIER_MODE=capture",
            )
        return self._named_states(body, request_id)

    def _named_states(self, body: dict[str, Any], request_id: str) -> Path | None:
        """Where this request's states lie or will lie; None where no file is named, or another request's."""
        path = (body.get("kv_transfer_params") or {}).get("hidden_states_path")
        name = Path(path).name if isinstance(path, str) else ""
        return self.exchange / name if request_id in name else None


def _json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        raise RowRefused("bad_answer", "the verifier's answer is not JSON") from None
    if not isinstance(body, dict):
        raise RowRefused("bad_answer", "the verifier's answer is not a JSON object")
    return body
