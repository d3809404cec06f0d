"""Deliveries: one for each webhook and job, kept in the artifact store until long after it has arrived.

    webhooks/WH/deliveries/MSG.json     the delivery: body, attempts, status
    webhook-queue/MSG                   the id of the webhook, while the delivery is pending

The id follows from webhook and job, and the first body written holds: whoever finds a job that has ended, and however
often, makes the same delivery, and its receiver can tell that it has seen it.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from services.gateway.webhooks.registry import FOLDER, Webhook, WebhookEvent
from shared.artifact_store import LocalArtifactStore
from shared.ids import ALPHABET, is_id
from shared.schemas.spec import Document
from shared.stored_documents import read_document

QUEUE = "webhook-queue"
KEPT_S = 30 * 86_400
DeliveryStatus = Literal["pending", "delivered", "failed"]


class DeliveryAttempt(Document):
    """One time that it was sent."""

    at: datetime
    status_code: int | None = Field(None, description="What the receiver answered, if it did.")
    error: str | None = Field(None, description="Why this was no success.")
    seconds: float = Field(ge=0)


class Delivery(Document):
    """What is sent to one webhook, and how that went."""

    id: str
    webhook: str
    event: WebhookEvent
    job_id: str | None
    body: str
    status: DeliveryStatus = "pending"
    attempts: list[DeliveryAttempt] = Field(default_factory=list)
    created_at: datetime
    next_attempt_at: datetime | None = None


class DeliveryView(BaseModel):
    """A delivery as the log shows it."""

    id: str = Field(description="The header `webhook-id`, the same in every attempt.")
    object: Literal["webhook_delivery"] = "webhook_delivery"
    event: WebhookEvent
    job_id: str | None = Field(description="Null for a test.")
    status: DeliveryStatus
    attempts: list[DeliveryAttempt] = Field(description="Oldest first.")
    created_at: datetime
    next_attempt_at: datetime | None = Field(description="Null when no attempt follows.")


class Deliveries:
    """All reads and writes of deliveries."""

    def __init__(self, artifacts: LocalArtifactStore) -> None:
        self.artifacts = artifacts

    def enter(self, delivery: Delivery) -> None:
        """Have a delivery sent, unless it was entered before."""
        if not self.artifacts.create(_document(delivery), _content(delivery)):
            known = self.get(delivery.webhook, delivery.id)
            if known is None or known.status != "pending":
                return
        self.artifacts.write(f"{QUEUE}/{delivery.id}", delivery.webhook.encode())

    def save(self, delivery: Delivery) -> None:
        """Write how a delivery went. One that arrived stays so, and of a removed webhook nothing comes back."""
        known = self.get(delivery.webhook, delivery.id)
        if known is not None and known.status == "pending":
            self.artifacts.write(_document(delivery), _content(delivery))
        if known is None or delivery.status != "pending" or known.status != "pending":
            self.artifacts.delete(f"{QUEUE}/{delivery.id}")

    def forget(self, delivery_id: str) -> None:
        """Take a delivery out of the queue."""
        self.artifacts.delete(f"{QUEUE}/{delivery_id}")

    def get(self, webhook_id: str, delivery_id: str) -> Delivery | None:
        """A delivery, or None."""
        return read_document(self.artifacts, f"{FOLDER}/{webhook_id}/deliveries/{delivery_id}.json", Delivery)

    def pending(self) -> Iterator[str]:
        """Ids of what is to be sent, now or later."""
        return (name for name in self.artifacts.list(QUEUE) if is_id(name, "msg"))

    def webhook_of(self, delivery_id: str) -> str | None:
        """The webhook of a pending delivery."""
        try:
            return self.artifacts.read(f"{QUEUE}/{delivery_id}").decode(errors="replace")
        except KeyError:
            return None

    def ids(self, webhook_id: str) -> list[str]:
        """Ids of a webhook's deliveries, newest job first."""
        names = [name.removesuffix(".json") for name in self.artifacts.list(f"{FOLDER}/{webhook_id}/deliveries")]
        return sorted((name for name in names if is_id(name, "msg")), reverse=True)

    def forget_old(self, webhook_id: str) -> None:
        """Remove deliveries from the log that ended long ago, by the store's own clock."""
        moment = self.artifacts.now()
        for delivery_id in self.ids(webhook_id):
            key = f"{FOLDER}/{webhook_id}/deliveries/{delivery_id}.json"
            with suppress(KeyError, FileNotFoundError):
                old = moment - self.artifacts.measure(key)[1] > KEPT_S
                if old and not self.artifacts.exists(f"{QUEUE}/{delivery_id}"):
                    self.artifacts.delete(key)


def delivery_id(webhook: Webhook, job_id: str) -> str:
    """The one id of a webhook's delivery for a job; sorts as the job does."""
    number = int.from_bytes(hashlib.sha256(f"{webhook.id} {job_id}".encode()).digest()[:8], "big")
    return f"msg_{job_id[4:13]}" + "".join(ALPHABET[(number >> (5 * place)) & 31] for place in range(11))


def delivery_view(delivery: Delivery) -> DeliveryView:
    """Show a delivery."""
    return DeliveryView.model_validate(delivery.model_dump(exclude={"webhook", "body"}))


def _document(delivery: Delivery) -> str:
    return f"{FOLDER}/{delivery.webhook}/deliveries/{delivery.id}.json"


def _content(delivery: Delivery) -> bytes:
    return delivery.model_dump_json().encode()
