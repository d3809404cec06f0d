"""Sends a delivery once. What the receiver answers is not read beyond its status, and no redirect is followed."""

import asyncio
import time

import httpx

from services.gateway.webhooks.deliveries import Delivery, DeliveryAttempt
from services.gateway.webhooks.hosts import AllowedHosts
from services.gateway.webhooks.messages import headers
from services.gateway.webhooks.registry import Webhook
from shared.schemas.job import now

TIMEOUT_S = 15.0  # for the whole attempt, however slowly a receiver answers
CONNECT_S = 5.0


async def send_once(
    http: httpx.AsyncClient, webhook: Webhook, delivery: Delivery, hosts: AllowedHosts, timeout_s: float = TIMEOUT_S
) -> DeliveryAttempt:
    """Send it, if the webhook's host is allowed now, and say how that went."""
    moment, started = now(), time.monotonic()
    code: int | None = None
    error = hosts.problem(webhook.url)
    if error is None:
        try:
            async with asyncio.timeout(timeout_s):
                code = await _post(http, webhook, delivery)
            error = _fault(code)
        except TimeoutError:
            error = f"there was no answer within {timeout_s:g} s"
        except httpx.HTTPError as failure:
            error = str(failure) or type(failure).__name__
    return DeliveryAttempt(at=moment, status_code=code, error=error, seconds=round(time.monotonic() - started, 3))


def new_client() -> httpx.AsyncClient:
    """A client that goes where it is told, past no proxy of the environment."""
    return httpx.AsyncClient(
        follow_redirects=False, trust_env=False, timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_S)
    )


async def _post(http: httpx.AsyncClient, webhook: Webhook, delivery: Delivery) -> int:
    signed = headers(webhook, delivery.id, delivery.body, now())
    async with http.stream("POST", webhook.url, content=delivery.body.encode(), headers=signed) as response:
        return response.status_code


def _fault(code: int) -> str | None:
    if 200 <= code < 300:
        return None
    if 300 <= code < 400:
        return "the receiver redirects, which is not followed: give the webhook the final URL"
    return f"the receiver answered {code}"
