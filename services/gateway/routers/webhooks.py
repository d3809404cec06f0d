"""Webhooks: `POST /v1/webhooks`, list, get, delete, `/test`, and the log of their `/deliveries`.

Order: newest first; deliveries by job, newest first. No filters; paging: `limit` and `after`.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Depends, Path
from pydantic import BaseModel, Field

from services.gateway.bodies import DocumentRoute
from services.gateway.deps import After, Backend, BackendDep, Limit
from services.gateway.paging import page_of
from services.gateway.problems import Problem, not_found
from services.gateway.webhooks.deliveries import Deliveries, Delivery, DeliveryView, delivery_view
from services.gateway.webhooks.messages import trial_body
from services.gateway.webhooks.registry import (
    JOB_EVENTS,
    JobEvent,
    NewWebhookView,
    Webhook,
    WebhookEvent,
    Webhooks,
    WebhookView,
)
from services.gateway.wire import Page
from shared.ids import new_id
from shared.schemas.job import now
from shared.schemas.spec import Document

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=DocumentRoute)
MOST = 100
EXAMPLES = {"ci": {"value": {"url": "https://hooks.example.org/eyrie", "events": ["job.succeeded", "job.failed"]}}}


class WebhookRequest(Document):
    """A webhook to make."""

    url: str = Field(max_length=2048, description="Where to send; its host must be in EYRIE_WEBHOOK_HOSTS.")
    events: list[JobEvent] = Field(
        default_factory=lambda: list(JOB_EVENTS),
        min_length=1,
        max_length=3,
        description="What to tell; absent: every end of a job.",
    )
    description: str | None = Field(None, max_length=512, description="For people.")


class DeletedWebhook(BaseModel):
    """A webhook that is gone, with its log."""

    id: str
    object: Literal["webhook"] = "webhook"
    deleted: Literal[True] = True


def find_webhook(webhook_id: Annotated[str, Path(description="Id of a webhook.")], backend: BackendDep) -> Webhook:
    """The webhook in the path."""
    webhook = Webhooks(backend.artifacts).get(webhook_id)
    if webhook is None:
        raise not_found("webhook", webhook_id)
    return webhook


WebhookDep = Annotated[Webhook, Depends(find_webhook)]


@router.post("", status_code=201)
def create_webhook(
    request: Annotated[WebhookRequest, Body(openapi_examples=EXAMPLES)], backend: BackendDep
) -> NewWebhookView:
    """Have an address told when a job ends. 422 where its host is not among those of `EYRIE_WEBHOOK_HOSTS`.

    What is sent is signed after Standard Webhooks with the secret of this answer, which is not shown again.
    """
    if problem := backend.webhook_hosts.problem(request.url):
        raise Problem(422, problem, errors=[{"pointer": "/url", "message": problem}])
    webhooks = Webhooks(backend.artifacts)
    if len(webhooks.ids()) >= MOST:
        raise Problem(409, f"there are {MOST} webhooks, which is all that there may be: delete one first")
    return _new(webhooks.create(request.url, request.events, request.description))


@router.get("")
def list_webhooks(backend: BackendDep, limit: Limit = 50, after: After = None) -> Page[WebhookView]:
    """List webhooks, without their secrets."""
    webhooks = Webhooks(backend.artifacts)
    ids, has_more = page_of(webhooks.ids(), after, limit)
    return Page(data=[_view(webhook) for i in ids if (webhook := webhooks.get(i))], has_more=has_more)


@router.get("/{webhook_id}")
def get_webhook(webhook: WebhookDep) -> WebhookView:
    """Show a webhook."""
    return _view(webhook)


@router.delete("/{webhook_id}")
def delete_webhook(webhook: WebhookDep, backend: BackendDep) -> DeletedWebhook:
    """Remove a webhook and its log; what still waits to be sent is not sent."""
    Webhooks(backend.artifacts).delete(webhook.id)
    return DeletedWebhook(id=webhook.id)


@router.post("/{webhook_id}/test", status_code=202)
def try_webhook(webhook: WebhookDep, backend: BackendDep) -> DeliveryView:
    """Send a signed `webhook.test`, as any delivery is sent; its log says how that went."""
    delivery = Delivery(
        id=new_id("msg"),
        webhook=webhook.id,
        event=WebhookEvent.TEST,
        job_id=None,
        body=trial_body(webhook),
        created_at=now(),
    )
    _require_enabled(webhook, backend)
    Deliveries(backend.artifacts).enter(delivery)
    return delivery_view(delivery)


@router.get("/{webhook_id}/deliveries")
def list_deliveries(
    webhook: WebhookDep, backend: BackendDep, limit: Limit = 50, after: After = None
) -> Page[DeliveryView]:
    """List what was sent to a webhook, or is still to be sent, with every attempt; kept for 30 days."""
    deliveries = Deliveries(backend.artifacts)
    ids, has_more = page_of(deliveries.ids(webhook.id), after, limit)
    found = [delivery for i in ids if (delivery := deliveries.get(webhook.id, i))]
    return Page(data=[delivery_view(delivery) for delivery in found], has_more=has_more)


def _require_enabled(webhook: Webhook, backend: Backend) -> None:
    if webhook.disabled:
        raise Problem(409, "its receiver answered 410 (gone), nothing is sent to it any more: make another webhook")
    if problem := backend.webhook_hosts.problem(webhook.url):
        raise Problem(422, problem)


def _view(webhook: Webhook) -> WebhookView:
    return WebhookView.model_validate(webhook.model_dump(exclude={"secret"}))


def _new(webhook: Webhook) -> NewWebhookView:
    return NewWebhookView.model_validate(webhook.model_dump())
