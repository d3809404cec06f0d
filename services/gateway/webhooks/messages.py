"""What is sent: the body for a job's end, and its headers with the signature (Standard Webhooks, symmetric, v1)."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime

from services.gateway.job_view import job_view
from services.gateway.webhooks.registry import EVENT_OF, Webhook, WebhookEvent
from shared.schemas.job import JobRecord, now

SHOWN = ("id", "object", "status", "status_reason", "draft", "name", "metadata", "links")


def job_body(record: JobRecord) -> str:
    """The body for a job that has ended."""
    shown = job_view(record).model_dump(mode="json", include=set(SHOWN))
    return _body(
        EVENT_OF[record.status], record.finished_at or record.updated_at, {name: shown[name] for name in SHOWN}
    )


def trial_body(webhook: Webhook) -> str:
    """The body of a test."""
    return _body(WebhookEvent.TEST, now(), {"id": webhook.id, "object": "webhook"})


def headers(webhook: Webhook, message_id: str, body: str, moment: datetime) -> dict[str, str]:
    """The headers of one attempt."""
    stamp = str(int(moment.timestamp()))
    key = base64.b64decode(webhook.secret.removeprefix("whsec_"))
    signature = hmac.new(key, f"{message_id}.{stamp}.{body}".encode(), hashlib.sha256).digest()
    return {
        "Content-Type": "application/json",
        "User-Agent": "eyrie-webhooks/1",
        "webhook-id": message_id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


def _body(event: WebhookEvent, moment: datetime, data: dict[str, object]) -> str:
    timestamp = moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"type": event, "timestamp": timestamp, "data": data}, ensure_ascii=False)
