"""Idempotency keys: one key and one body stand for one job, however often and at how many gateways they arrive.

Redis holds `eyrie:idempotency:DIGEST` (a hash: `body`, `job`, `until`, `answer`) for a day. The id of the job is fixed
with the claim, so that a claim which a dying gateway left behind can be taken over without making a second job. Just
before the job is made, the artifact store gets `idempotency/DIGEST.json` (body, job), and the answer when there is one:
it is asked for what an emptied Redis has lost. The first answer is given again whatever has become of the job since.
"""

import contextlib
import hashlib
import logging
from dataclasses import dataclass
from typing import Literal, cast

from redis import Redis

from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError
from shared.live_jobs import PREFIX
from shared.schemas.spec import Document

log = logging.getLogger(__name__)
KEEP_S = 86_400
CLAIM_S = 60

CLAIM = """
local time = redis.call('TIME')
local now = tonumber(time[1])
local body = redis.call('HGET', KEYS[1], 'body')
if not body then
    redis.call('HSET', KEYS[1], 'body', ARGV[1], 'job', ARGV[2], 'until', now + tonumber(ARGV[3]))
    redis.call('EXPIRE', KEYS[1], ARGV[4])
    return {'new', ARGV[2]}
end
local job = redis.call('HGET', KEYS[1], 'job')
if body ~= ARGV[1] then return {'conflict', job} end
local answer = redis.call('HGET', KEYS[1], 'answer')
if answer then return {'done', job, answer} end
if now <= tonumber(redis.call('HGET', KEYS[1], 'until')) then return {'pending', job} end
redis.call('HSET', KEYS[1], 'until', now + tonumber(ARGV[3]))
return {'new', job}
"""

State = Literal["new", "done", "pending", "conflict"]


@dataclass(frozen=True)
class Claim:
    """What became of a claim.

    Attributes:
        state: `new`: the caller makes the job; `done`: it was made; `pending`: the first request is under way;
            `conflict`: the key was used with another body.
        job_id: the job that the key stands for.
        answer: the first answer's body, where the state is `done`.
    """

    state: State
    job_id: str
    answer: str = ""


class KeptClaim(Document):
    """What the artifact store knows of a key."""

    body: str
    job: str
    answer: str | None = None


class IdempotencyKeys:
    """Claims, keeps, settles and frees keys."""

    def __init__(self, redis: Redis, artifacts: LocalArtifactStore) -> None:
        self.redis, self.artifacts = redis, artifacts

    def claim(self, key: str, body: str, job_id: str) -> Claim:
        """Claim `key` for a request body (by digest) that shall become the job `job_id`."""
        kept = None if self.redis.exists(_name(key)) else self._kept(key)
        if kept is None:
            return self._claim(key, body, job_id)
        if kept.body != body:
            return Claim("conflict", kept.job)
        if kept.answer is None:  # Redis was emptied before there was one
            return self._claim(key, body, kept.job)
        self._remember(key, kept)
        return Claim("done", kept.job, kept.answer)

    def keep(self, key: str, body: str, job_id: str) -> None:
        """Have the claim outlive Redis; to be called just before the job is made."""
        self.artifacts.write(_document(key), KeptClaim(body=body, job=job_id).model_dump_json().encode())

    def settle(self, key: str, body: str, job_id: str, answer: str) -> None:
        """The job exists: from now on the key stands for it, and gets this answer."""
        kept = KeptClaim(body=body, job=job_id, answer=answer)
        try:
            self.artifacts.write(_document(key), kept.model_dump_json().encode())
        except ArtifactStoreError as error:  # the job was made; only an emptied Redis would miss its answer
            log.warning("the answer of job %s is not in the artifact store: %s", job_id, error)
        self._remember(key, kept)

    def free(self, key: str) -> None:
        """The request was refused: the key may be used again."""
        with contextlib.suppress(ArtifactStoreError):
            self.artifacts.delete(_document(key))
        self.redis.delete(_name(key))

    def forget_old(self) -> None:
        """Remove what the artifact store knows of keys that are a day old."""
        names = list(self.artifacts.list("idempotency"))
        moment = self.artifacts.now() if names else 0.0
        for name in names:
            with contextlib.suppress(KeyError, FileNotFoundError):
                if moment - self.artifacts.measure(f"idempotency/{name}")[1] > KEEP_S:
                    self.artifacts.delete(f"idempotency/{name}")

    def _claim(self, key: str, body: str, job_id: str) -> Claim:
        state, *rest = cast("list[str]", self.redis.eval(CLAIM, 1, _name(key), body, job_id, CLAIM_S, KEEP_S))
        return Claim(cast("State", state), *rest)

    def _remember(self, key: str, kept: KeptClaim) -> None:
        pipeline = self.redis.pipeline()
        pipeline.hset(_name(key), mapping={"body": kept.body, "job": kept.job, "answer": kept.answer or "", "until": 0})
        pipeline.expire(_name(key), KEEP_S)
        pipeline.execute()

    def _kept(self, key: str) -> KeptClaim | None:
        try:
            return KeptClaim.model_validate_json(self.artifacts.read(_document(key)))
        except KeyError:
            return None


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _name(key: str) -> str:
    return f"{PREFIX}idempotency:{_digest(key)}"


def _document(key: str) -> str:
    return f"idempotency/{_digest(key)}.json"
