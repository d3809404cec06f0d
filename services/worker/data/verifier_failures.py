"""What a verifier's failed answer says: its error, a short name for a refusal, and when to ask again."""

import math
import random
import time
from email.utils import parsedate_to_datetime

import httpx

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
LONGEST_WAIT_S = 3600.0  # that a Retry-After may ask for


def error_text(response: httpx.Response) -> str:
    try:
        body = response.json()
    except ValueError:
        return response.text[:300]
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


def refusal_reason(response: httpx.Response) -> str:
    text = error_text(response).lower()
    if "context length" in text or "maximum model length" in text or "max_model_len" in text:
        return "prompt_too_long"
    return f"refused_{response.status_code}"


def retry_after(response: httpx.Response) -> float | None:
    """Seconds to wait, from either form of the header (a number, or an HTTP date); None where it says nothing."""
    given = response.headers.get("Retry-After", "").strip()
    try:
        wait = float(given)
    except ValueError:
        try:
            wait = parsedate_to_datetime(given).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(0.0, wait), LONGEST_WAIT_S) if math.isfinite(wait) else None


def backoff(attempt: int) -> float:
    return float(min(FIRST_BACKOFF_S * 2.0 ** (attempt - 1), LONGEST_BACKOFF_S) * random.uniform(0.75, 1.25))
