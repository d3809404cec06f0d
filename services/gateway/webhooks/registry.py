"""Webhooks as they are kept: `webhooks/ID/webhook.json` in the artifact store, with the secret that signs."""

import base64
import secrets
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, Field

from shared.artifact_store import LocalArtifactStore
from shared.ids import is_id, new_id
from shared.schemas.job import JobStatus, now
from shared.schemas.spec import Document
from shared.stored_documents import read_document

FOLDER = "webhooks"
SECRET_BYTES = 32


class WebhookEvent(StrEnum):
    """What a webhook can be told of."""

    SUCCEEDED = "job.succeeded"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"
    TEST = "webhook.test"


JobEvent = Literal[WebhookEvent.SUCCEEDED, WebhookEvent.FAILED, WebhookEvent.CANCELLED]
JOB_EVENTS: tuple[JobEvent, ...] = (WebhookEvent.SUCCEEDED, WebhookEvent.FAILED, WebhookEvent.CANCELLED)
EVENT_OF = {
    JobStatus.SUCCEEDED: WebhookEvent.SUCCEEDED,
    JobStatus.FAILED: WebhookEvent.FAILED,
    JobStatus.CANCELLED: WebhookEvent.CANCELLED,
}


class Webhook(Document):
    """A webhook with its secret."""

    id: str
    url: str
    events: list[WebhookEvent]
    description: str | None = None
    secret: str
    created_at: datetime
    disabled: bool = False


class WebhookView(BaseModel):
    """A webhook, without its secret."""

    id: str = Field(examples=["wh_01krw2x9q8c3v5t7n4mp"])
    object: Literal["webhook"] = "webhook"
    url: str
    events: list[WebhookEvent]
    description: str | None
    created_at: datetime
    disabled: bool = Field(description="Nothing is sent any more: its receiver answered 410 (gone).")


class NewWebhookView(WebhookView):
    """A webhook that was just made."""

    secret: str = Field(description="Verifies what is sent (Standard Webhooks). It is shown this once.")


class Webhooks:
    """Makes, lists and removes webhooks."""

    def __init__(self, artifacts: LocalArtifactStore) -> None:
        self.artifacts = artifacts

    def create(self, url: str, events: Iterable[WebhookEvent], description: str | None) -> Webhook:
        """Make a webhook with a secret of its own."""
        secret = "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
        webhook = Webhook(
            id=new_id("wh"),
            url=url,
            events=sorted(set(events)),
            description=description,
            secret=secret,
            created_at=now(),
        )
        self._write(webhook)
        return webhook

    def ids(self) -> list[str]:
        """Ids of all webhooks, newest first."""
        return sorted((name for name in self.artifacts.list(FOLDER) if is_id(name, "wh")), reverse=True)

    def get(self, webhook_id: str) -> Webhook | None:
        """A webhook, or None."""
        if not is_id(webhook_id, "wh"):
            return None
        return read_document(self.artifacts, _document(webhook_id), Webhook, "the webhook is told nothing")

    def all(self) -> list[Webhook]:
        """All webhooks, newest first."""
        return [webhook for i in self.ids() if (webhook := self.get(i)) is not None]

    def disable(self, webhook: Webhook) -> None:
        """Send nothing to it any more."""
        if self.get(webhook.id) is not None:
            self._write(webhook.model_copy(update={"disabled": True}))

    def delete(self, webhook_id: str) -> None:
        """Remove a webhook with its deliveries; what waits is not sent."""
        self.artifacts.delete(_document(webhook_id))
        self.artifacts.delete(f"{FOLDER}/{webhook_id}")

    def _write(self, webhook: Webhook) -> None:
        self.artifacts.write(_document(webhook.id), webhook.model_dump_json().encode())


def _document(webhook_id: str) -> str:
    return f"{FOLDER}/{webhook_id}/webhook.json"
