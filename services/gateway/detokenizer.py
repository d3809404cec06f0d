"""Asks a running verifier for the text of token ids; only for people to read, so it may fail at any time.

In: the base URL that a job's document or the settings name, and lists of ids. Out: their texts, or None.
"""

import time
from collections.abc import Sequence

import httpx

REQUEST_TIMEOUT = httpx.Timeout(3.0, connect=1.0)
DEADLINE_S = 5.0


def texts_of(endpoint: str, model: str, pieces: Sequence[Sequence[int]]) -> list[str] | None:
    """The text of each piece; None where the verifier does not answer in time, or is another model.

    Args:
        endpoint: base URL without /v1.
        model: hub id or folder of the verifier; what is served must have the same last part.
    """
    deadline = time.monotonic() + DEADLINE_S
    try:
        with httpx.Client(base_url=endpoint.rstrip("/"), timeout=REQUEST_TIMEOUT, trust_env=False) as http:
            name = _served(http, model)
            texts: list[str] = []
            for piece in pieces:
                if name is None or time.monotonic() > deadline:
                    return None
                answer = http.post("/detokenize", json={"model": name, "tokens": list(piece)})
                texts.append(str(answer.raise_for_status().json()["prompt"]))
            return texts
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None


def _served(http: httpx.Client, model: str) -> str | None:
    """The name under which the endpoint serves the model, if it does."""
    for item in http.get("/v1/models").raise_for_status().json()["data"]:
        names = [str(item["id"]), str(item.get("root") or "")]
        if _last(model) in map(_last, names):
            return names[0]
    return None


def _last(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]
