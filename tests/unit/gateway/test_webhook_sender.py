"""One attempt at a webhook: how long it may take, where it may go, and when the next one follows."""

import asyncio
from datetime import timedelta

import pytest

from services.gateway.webhooks.deliverer import WAITS
from services.gateway.webhooks.deliveries import Delivery, DeliveryAttempt, delivery_id
from services.gateway.webhooks.hosts import AllowedHosts
from services.gateway.webhooks.registry import Webhook, WebhookEvent
from services.gateway.webhooks.sender import new_client, send_once
from shared.errors import UserError
from shared.ids import is_id, new_id
from shared.schemas.job import now
from tests.support.webhook_receiver import webhook_receiver

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


def webhook(url: str) -> Webhook:
    return Webhook(id=new_id("wh"), url=url, events=[WebhookEvent.FAILED], secret=SECRET, created_at=now())


def send(url: str, hosts: str, timeout_s: float = 0.5) -> DeliveryAttempt:
    to = webhook(url)
    body = '{"name": "Zoë"}'
    delivery = Delivery(
        id=new_id("msg"), webhook=to.id, event=WebhookEvent.FAILED, job_id=None, body=body, created_at=now()
    )

    async def once() -> DeliveryAttempt:
        async with new_client() as http:
            return await send_once(http, to, delivery, AllowedHosts.parse(hosts), timeout_s)

    return asyncio.run(once())


@pytest.mark.parametrize("behaviour", ["hang", "drip"])
def test_a_receiver_that_never_ends_its_answer_is_left(behaviour: str) -> None:
    with webhook_receiver() as receiver:
        receiver.answer = lambda _: behaviour
        attempt = send(receiver.url, f"127.0.0.1:{receiver.port}")
    assert attempt.status_code is None
    assert "no answer within 0.5 s" in str(attempt.error)


def test_the_body_arrives_as_it_was_signed() -> None:
    with webhook_receiver() as receiver:
        receiver.secret = SECRET
        assert send(receiver.url, f"127.0.0.1:{receiver.port}", 10).error is None
    assert receiver.verified[0][1] == {"name": "Zoë"}


def test_a_host_that_was_taken_off_the_list_is_not_sent_to() -> None:
    with webhook_receiver() as receiver:
        for hosts, says in (("hooks.example.org", "not among the hosts"), ("", "webhooks are off")):
            assert says in str(send(receiver.url, hosts).error)
        assert receiver.requests == []


def test_a_receiver_that_is_away_is_an_attempt() -> None:
    with webhook_receiver() as receiver:
        port = receiver.port
    attempt = send(f"http://127.0.0.1:{port}/", f"127.0.0.1:{port}", 10)
    assert (attempt.status_code, bool(attempt.error)) == (None, True)


@pytest.mark.parametrize(
    ("hosts", "url", "allowed"),
    [
        ("hooks.example.org", "https://hooks.example.org/a?b=c", True),
        ("hooks.example.org", "http://HOOKS.example.org/", True),
        ("hooks.example.org", "https://hooks.example.org:8443/", False),
        ("hooks.example.org:8443", "https://hooks.example.org:8443/", True),
        ("hooks.example.org", "http://hooks.example.org:0/", False),
        ("hooks.example.org:8443", "https://hooks.example.org/", False),
        ("hooks.example.org", "https://a.hooks.example.org/", False),
        ("hooks.example.org", "https://hooks.example.org.evil.example/", False),
        ("hooks.example.org", "https://evil.example\\@hooks.example.org/", False),
        ("hooks.example.org", "https://evil.example#@hooks.example.org/", False),
        (" a , [::1]:8000 ,", "http://[::1]:8000/", True),
        ("a,[::1]:8000", "http://[::1]/", False),
        ("bücher.example", "https://xn--bcher-kva.example/", True),
    ],
)
def test_a_host_is_allowed_as_it_is_listed(hosts: str, url: str, allowed: bool) -> None:
    assert (AllowedHosts.parse(hosts).problem(url) is None) is allowed


@pytest.mark.parametrize(
    "hosts", ["https://a.example", "*", "*.example.org", "a.example/x", "a.example:0", "a b", "u@h"]
)
def test_a_list_that_cannot_be_read_is_refused(hosts: str) -> None:
    with pytest.raises(UserError, match="EYRIE_WEBHOOK_HOSTS"):
        AllowedHosts.parse(hosts)


def test_a_delivery_has_one_id_and_is_tried_for_about_a_day() -> None:
    to, other, job = webhook("http://a/"), webhook("http://a/"), new_id("job")
    assert delivery_id(to, job) == delivery_id(to, job) != delivery_id(other, job)
    assert is_id(delivery_id(to, job), "msg")
    assert timedelta(hours=22) < sum(WAITS) * timedelta(seconds=5) < timedelta(hours=26)
