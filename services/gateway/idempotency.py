"""Idempotency keys: one key and one body stand for one job, however often and at how many gateways they arrive.

Redis holds `eyrie:idempotency:DIGEST` (a hash: `body`, `job`, `settled`, `until`) for a day. The id of the job is fixed
with the claim, so that a claim which a dying gateway left behind can be taken over without making a second job. Just
before the job is made, the artifact store gets `idempotency/DIGEST.json` (body, job), which an emptied Redis is asked
for: it is found by the key at once, however many jobs there are.
"""

import contextlib
import hashlib
from typing import Literal, cast

from redis import Redis

from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError
from shared.live_jobs import PREFIX
from shared.schemas.spec import Document

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
if redis.call('HGET', KEYS[1], 'settled') then return {'done', job} end
if now <= tonumber(redis.call('HGET', KEYS[1], 'until')) then return {'pending', job} end
redis.call('HSET', KEYS[1], 'until', now + tonumber(ARGV[3]))
return {'new', job}
"""

Claim = Literal["new", "done", "pending", "conflict"]


class KeptClaim(Document):
    """What the artifact store knows of a key."""

    body: str
    job: str


class IdempotencyKeys:
    """Claims, keeps, settles and frees keys."""

    def __init__(self, redis: Redis, artifacts: LocalArtifactStore) -> None:
        self.redis, self.artifacts = redis, artifacts

    def claim(self, key: str, body: str, job_id: str) -> tuple[Claim, str]:
        """Claim `key` for a request body (by digest) that shall become the job `job_id`.

        Returns:
            `new` and the id to create; `done` and the id of the job that exists; `pending` while the first request is
            under way; `conflict` when the key was used with another body.
        """
        kept = None if self.redis.exists(_name(key)) else self._kept(key)
        if kept is None:
            return self._claim(key, body, job_id)
        state, job = self._claim(key, kept.body, kept.job)  # Redis was emptied: as it was
        if self.artifacts.exists(f"jobs/{job}/job.json"):
            self.settle(key)
            state, job = self._claim(key, body, job_id)
        return ("conflict", job) if kept.body != body else (state, job)

    def keep(self, key: str, body: str, job_id: str) -> None:
        """Have the claim outlive Redis; to be called just before the job is made."""
        self.artifacts.write(_document(key), KeptClaim(body=body, job=job_id).model_dump_json().encode())

    def settle(self, key: str) -> None:
        """The job exists: from now on the key stands for it."""
        self.redis.hset(_name(key), "settled", "1")

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
                if moment - self.artifacts.path(f"idempotency/{name}").stat().st_mtime > KEEP_S:
                    self.artifacts.delete(f"idempotency/{name}")

    def _claim(self, key: str, body: str, job_id: str) -> tuple[Claim, str]:
        state, job = cast("list[str]", self.redis.eval(CLAIM, 1, _name(key), body, job_id, CLAIM_S, KEEP_S))
        return cast("Claim", state), job

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
