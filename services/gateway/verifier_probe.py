"""Asks the fleet's own verifier (`EYRIE_VERIFIER_URL`) how it is and what it serves.

Its dimensions come from its model's folder, where the gateway sees that, and its captured layers from the note that it
leaves in the exchange folder, where the gateway shares that. What cannot be known is null.
"""

import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from shared.schemas.fleet import VerifierCapture, VerifierState, VerifierStatus
from shared.schemas.job import now
from shared.verifier_config import visible_verifier_config
from shared.verifier_settings import capture_note_name

ID = "external"
TIMEOUT_S = 2.0
KEPT_S = 3.0  # an answer stands so long, whoever asks


class VerifierProbe:
    """One external verifier. Never takes much longer than `TIMEOUT_S`, however many ask."""

    def __init__(self, url: str | None, exchange: Path, transport: httpx.BaseTransport | None = None) -> None:
        self.url, self.exchange = url, exchange
        self._http = httpx.Client(timeout=TIMEOUT_S, trust_env=False, transport=transport)
        self._lock = threading.Lock()
        self._asked_at = -KEPT_S
        self._state: VerifierState | None = None

    def state(self) -> VerifierState | None:
        """The verifier as it was within the last seconds; None where the fleet has none of its own."""
        if not self.url:
            return None
        with self._lock:
            if time.monotonic() - self._asked_at >= KEPT_S:
                self._state = self._ask(self.url)
                self._asked_at = time.monotonic()
            return self._state

    def _ask(self, url: str) -> VerifierState:
        state = VerifierState(id=ID, kind="external", url=url, status=VerifierStatus.READY, checked_at=now())
        status, message, body = self._models(url.rstrip("/"))
        if status != VerifierStatus.READY:
            return state.model_copy(update={"status": status, "status_message": message})
        served = _first(body)
        name, root, length = served.get("id"), served.get("root"), served.get("max_model_len")
        config = visible_verifier_config(root) if isinstance(root, str) and root else None
        return state.model_copy(
            update={
                "status_message": message,
                "model": name if isinstance(name, str) else None,
                "max_model_len": length if isinstance(length, int) else None,
                "num_layers": config and config.num_hidden_layers,
                "hidden_size": config and config.hidden_size,
                "vocab_size": config and config.vocab_size,
                "capture": self._capture(name) if isinstance(name, str) else None,
            }
        )

    def _models(self, url: str) -> tuple[VerifierStatus, str, Any]:
        try:
            health = self._http.get(f"{url}/health")
            if health.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return VerifierStatus.LOADING, "/health answers 503: it is not ready", None
            response = self._http.get(f"{url}/v1/models").raise_for_status()
            return VerifierStatus.READY, "answers", response.json()
        except httpx.HTTPStatusError as error:
            return VerifierStatus.UNREACHABLE, f"/v1/models answers {error.response.status_code}: is it vLLM?", None
        except httpx.TimeoutException:
            return VerifierStatus.UNREACHABLE, f"it does not answer within {TIMEOUT_S:g} s", None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            hint = "vLLM opens its port only when the weights are loaded; else look at its log, or EYRIE_VERIFIER_URL"
            return VerifierStatus.UNREACHABLE, f"it cannot be reached ({error}): {hint}", None
        except ValueError:
            return VerifierStatus.UNREACHABLE, "/v1/models answers something that is not JSON: is it vLLM?", None

    def _capture(self, name: str) -> VerifierCapture | None:
        try:
            note = json.loads((self.exchange / capture_note_name(name)).read_text(encoding="utf-8"))
            layers = [int(layer) for layer in note["layer_ids"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        exchange = str(self.exchange.absolute())
        return VerifierCapture(enabled=True, layer_ids=layers, modes=["inline", "prefill"], exchange=exchange)


def _first(body: Any) -> dict[str, Any]:
    data = body.get("data") if isinstance(body, dict) else None
    return data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
