"""Idempotency keys: one key and one body stand for one job, however often and at how many gateways they arrive.

Redis holds `eyrie:idempotency:DIGEST` (a hash: `body`, `job`, `settled`, `until`) for a day. The id of the job is fixed
with the claim, so that a claim which a dying gateway left behind can be taken over without making a second job.
"""

import hashlib
from typing import Literal, cast

from redis import Redis

from shared.job_store import PREFIX

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


class IdempotencyKeys:
    """Claims, settles and frees keys."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    def claim(self, key: str, body: str, job_id: str) -> tuple[Claim, str]:
        """Claim `key` for a request body (by digest) that shall become the job `job_id`.

        Returns:
            `new` and the id to create; `done` and the id of the job that exists; `pending` while the first request is
            under way; `conflict` when the key was used with another body.
        """
        reply = self.redis.eval(CLAIM, 1, _name(key), body, job_id, CLAIM_S, KEEP_S)
        state, job = cast("list[str]", reply)
        return cast("Claim", state), job

    def settle(self, key: str) -> None:
        """The job exists: from now on the key stands for it."""
        self.redis.hset(_name(key), "settled", "1")

    def free(self, key: str) -> None:
        """The request was refused: the key may be used again."""
        self.redis.delete(_name(key))


def _name(key: str) -> str:
    return f"{PREFIX}idempotency:{hashlib.sha256(key.encode()).hexdigest()}"
