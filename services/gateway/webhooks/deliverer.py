"""Tells webhooks of jobs that have ended: a thread of each gateway, of which one works at a time, under a lease.

The end of a job is noted in Redis in the same step as its last status. From there it becomes deliveries in the artifact
store, which are sent until they arrive or `WAITS` are used up. A gateway may die at any point in between: the next one
goes on, and sends again what may or may not have arrived, under the same id.
"""

import asyncio
import logging
import random
import threading
import time
from datetime import timedelta

import httpx
from redis.exceptions import RedisError

from services.gateway.webhooks.deliveries import Deliveries, Delivery, DeliveryAttempt, delivery_id
from services.gateway.webhooks.hosts import AllowedHosts
from services.gateway.webhooks.messages import job_body
from services.gateway.webhooks.registry import EVENT_OF, Webhook, Webhooks
from services.gateway.webhooks.sender import TIMEOUT_S, new_client, send_once
from shared import leases
from shared.errors import EyrieError
from shared.ids import new_id
from shared.job_store import JobNotFound, JobStore
from shared.live_jobs import PREFIX
from shared.schemas.job import JobRecord, now
from shared.settings import Settings

log = logging.getLogger(__name__)
LEASE_KEY = f"{PREFIX}lease:webhooks"
LEASE_S = 8.0  # two at a time do no harm: a delivery has one id
TICK_S = 0.5
BATCH = 200
MOST_AT_ONCE = 32
MOST_A_WEBHOOK = 4  # one that hangs does not keep the others waiting
CLOCKS_DIFFER = timedelta(minutes=15)
TOLD_WITHIN = timedelta(days=3)  # an emptied Redis that is filled again tells nobody of what ended long ago
SWEEP_S = 3600.0
GONE = 410
# Times `webhook_retry_s`: from 5 seconds to 8 hours, a day in all.
WAITS = (1, 6, 24, 120, 360, 720, 1440, 2880, 5760, 5760)


class Deliverer:
    """Makes deliveries of ended jobs and sends them.

    Args:
        timeout_s: how long one attempt may take.
    """

    def __init__(self, jobs: JobStore, settings: Settings, hosts: AllowedHosts, timeout_s: float = TIMEOUT_S) -> None:
        self.jobs, self.settings, self.hosts, self.timeout_s = jobs, settings, hosts, timeout_s
        self.webhooks, self.deliveries = Webhooks(jobs.artifacts), Deliveries(jobs.artifacts)
        self.holder = new_id("gw")
        self._sending: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._due: dict[str, tuple[str, float]] = {}  # by delivery: webhook, and when, on the monotonic clock
        self._swept_at = -SWEEP_S

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; what is being sent then is sent again by whoever goes on."""
        asyncio.run(self._run(stop))

    async def _run(self, stop: threading.Event) -> None:
        async with new_client() as http:
            while not stop.is_set():
                try:
                    if leases.acquire(self.jobs.redis, [LEASE_KEY], self.holder, LEASE_S):
                        self._round(http)
                    else:
                        self._due.clear()
                except (RedisError, EyrieError) as error:
                    log.warning("webhooks wait: %s", error)
                except Exception:
                    log.exception("webhooks failed; they go on with the next round")
                await asyncio.sleep(TICK_S)
            tasks = [task for _, task in self._sending.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        try:
            leases.release(self.jobs.redis, LEASE_KEY, self.holder)
        except RedisError:
            log.info("the webhooks' lease is left to expire")

    def _round(self, http: httpx.AsyncClient) -> None:
        self.enter_ended()
        self._look_at_queue()
        moment = time.monotonic()
        for message, (webhook_id, due) in sorted(self._due.items(), key=lambda item: item[1][1]):
            if due > moment or len(self._sending) >= MOST_AT_ONCE:
                break
            busy = [sent_to for sent_to, _ in self._sending.values()].count(webhook_id)
            if message not in self._sending and busy < MOST_A_WEBHOOK:
                self._sending[message] = (webhook_id, asyncio.create_task(self._send(http, webhook_id, message)))
        if moment - self._swept_at > SWEEP_S:
            self._swept_at = moment
            for webhook_id in self.webhooks.ids():
                self.deliveries.forget_old(webhook_id)

    def enter_ended(self) -> None:
        """Make deliveries of the jobs that have ended; the note in Redis goes when all of them are kept."""
        ended = self.jobs.untold_ends(BATCH)
        webhooks = self.webhooks.all() if ended else []
        for job_id, text in ended.items():
            record = self._record(job_id, text)
            for webhook in webhooks if record is not None else []:
                if record is not None and _wants(webhook, record):
                    self.deliveries.enter(_delivery(webhook, record))
            self.jobs.end_was_told(job_id)

    def _record(self, job_id: str, text: str) -> JobRecord | None:
        try:
            return JobRecord.model_validate_json(text) if text else self.jobs.get(job_id)
        except JobNotFound:
            return None

    def _look_at_queue(self) -> None:
        pending = set(self.deliveries.pending())
        self._due = {message: due for message, due in self._due.items() if message in pending}
        for message in pending - self._due.keys():
            webhook_id = self.deliveries.webhook_of(message)
            delivery = self.deliveries.get(webhook_id, message) if webhook_id else None
            if delivery is None or delivery.status != "pending":  # it arrived, or its webhook is gone
                self.deliveries.forget(message)
            else:
                self._due[message] = (delivery.webhook, time.monotonic() + _seconds_to(delivery))

    async def _send(self, http: httpx.AsyncClient, webhook_id: str, message: str) -> None:
        try:
            webhook, delivery = self.webhooks.get(webhook_id), self.deliveries.get(webhook_id, message)
            if webhook is None or delivery is None or delivery.status != "pending":
                self.deliveries.forget(message)
                return
            if webhook.disabled:
                self.deliveries.save(delivery.model_copy(update={"status": "failed", "next_attempt_at": None}))
                return
            attempt = await send_once(http, webhook, delivery, self.hosts, self.timeout_s)
            self._note(webhook, delivery, attempt)
        except EyrieError as error:
            log.warning("the delivery %s could not be noted: %s", message, error)
        finally:
            self._sending.pop(message, None)
            self._due.pop(message, None)  # the next round reads when it is due

    def _note(self, webhook: Webhook, delivery: Delivery, attempt: DeliveryAttempt) -> None:
        delivery.attempts = [*delivery.attempts, attempt]
        tries = len(delivery.attempts)
        delivery.next_attempt_at = None
        if attempt.error is None:
            delivery.status = "delivered"
        elif attempt.status_code == GONE or tries > len(WAITS):
            delivery.status = "failed"
        else:
            wait_s = WAITS[tries - 1] * self.settings.webhook_retry_s * random.uniform(1.0, 1.1)
            delivery.next_attempt_at = now() + timedelta(seconds=wait_s)
        self.deliveries.save(delivery)
        if attempt.status_code == GONE:
            self.webhooks.disable(webhook)
        log.info("delivery %s to %s: %s", delivery.id, webhook.id, attempt.error or "arrived")


def _wants(webhook: Webhook, record: JobRecord) -> bool:
    """Whether a webhook is to be told; one that was made long after the job had ended is not."""
    ended = record.finished_at or record.updated_at
    recent = now() - ended < TOLD_WITHIN and webhook.created_at < ended + CLOCKS_DIFFER
    return recent and not webhook.disabled and EVENT_OF[record.status] in webhook.events


def _delivery(webhook: Webhook, record: JobRecord) -> Delivery:
    return Delivery(
        id=delivery_id(webhook, record.id),
        webhook=webhook.id,
        event=EVENT_OF[record.status],
        job_id=record.id,
        body=job_body(record),
        created_at=now(),
    )


def _seconds_to(delivery: Delivery) -> float:
    if delivery.next_attempt_at is None:
        return 0.0
    return (delivery.next_attempt_at - now()).total_seconds()
