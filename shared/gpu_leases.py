"""Leases on GPUs in Redis, by UUID: all that a run asks for or none, in the order in which runs asked.

Keys (below `eyrie:`):
    gpu:ID             the token of the run that has the GPU; expires when that run falls silent
    gpus:held          hash: GPU to its `GpuHolder` (JSON); stays when the lease expires
    gpus:line          sorted set: tokens of the runs that wait for GPUs, by number
    gpus:number        the last number given out
    gpus:wait:TOKEN    what the run wants (JSON): `count` of `gpus`, of which it found `usable` empty when it last
                       asked; expires when it stops asking

A GPU with a holder and without a lease is *quarantined*: its run is gone, its processes may not be. It is given to
nobody until somebody who can see the machine has found it empty (`clear`).

What is free belongs to the first in line, as far as it wants it, even while that is not enough for it: so a run that
wants all GPUs gets them although others want one each. A run whose wish cannot be met now, since too much of its pool
is quarantined, lets others pass.
"""

import json
from typing import Any, cast

from redis import Redis

from shared.schemas.fleet import GpuHolder

PREFIX = "eyrie:"
HELD, LINE, NUMBER = f"{PREFIX}gpus:held", f"{PREFIX}gpus:line", f"{PREFIX}gpus:number"
WAIT_LIFE_S = 15.0  # runs that wait ask every second or so

# KEYS: held, line, number; ARGV: prefix, token, wish (JSON), holder (JSON), lease and wait in ms.
ASK = """
local prefix, token, wish = ARGV[1], ARGV[2], cjson.decode(ARGV[3])
local spoken_for = {}
local function leased(gpu) return redis.call('EXISTS', prefix .. 'gpu:' .. gpu) == 1 end
local function held(gpu) return redis.call('HEXISTS', KEYS[1], gpu) == 1 end
local function choose(count, offers)
    local chosen, seen = {}, {}
    for _, offer in ipairs(offers) do
        for _, gpu in ipairs(offer) do
            local free = not spoken_for[gpu] and not leased(gpu) and not held(gpu)
            if #chosen < count and free and not seen[gpu] then table.insert(chosen, gpu) end
            seen[gpu] = true
        end
    end
    return chosen
end
redis.call('SET', prefix .. 'gpus:wait:' .. token, ARGV[3], 'PX', ARGV[6])
if not redis.call('ZSCORE', KEYS[2], token) then
    redis.call('ZADD', KEYS[2], redis.call('INCR', KEYS[3]), token)
end
for _, other in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    if other == token then break end
    local text = redis.call('GET', prefix .. 'gpus:wait:' .. other)
    if not text then
        redis.call('ZREM', KEYS[2], other)
    else
        local earlier, possible = cjson.decode(text), 0
        for _, gpu in ipairs(earlier.gpus) do
            if leased(gpu) or not held(gpu) then possible = possible + 1 end
        end
        -- What became free since it looked is its own as well: it has not had its turn to see that.
        local kept = possible >= earlier.count and choose(earlier.count, {earlier.usable, earlier.gpus}) or {}
        for _, gpu in ipairs(kept) do spoken_for[gpu] = true end
    end
end
local chosen = choose(wish.count, {wish.usable})
if #chosen < wish.count then return {} end
for _, gpu in ipairs(chosen) do
    redis.call('SET', prefix .. 'gpu:' .. gpu, token, 'PX', ARGV[5])
    redis.call('HSET', KEYS[1], gpu, ARGV[4])
end
redis.call('ZREM', KEYS[2], token)
redis.call('DEL', prefix .. 'gpus:wait:' .. token)
return chosen
"""
# KEYS: held; ARGV: prefix, token, holder (JSON), lease in ms, GPUs.
RENEW = """
for i = 5, #ARGV do
    local owner, holder = redis.call('GET', ARGV[1] .. 'gpu:' .. ARGV[i]), redis.call('HGET', KEYS[1], ARGV[i])
    if not owner and holder then owner = cjson.decode(holder).token end
    if owner and owner ~= ARGV[2] then return 0 end
end
for i = 5, #ARGV do
    redis.call('SET', ARGV[1] .. 'gpu:' .. ARGV[i], ARGV[2], 'PX', ARGV[4])
    redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[3])
end
return 1
"""
# KEYS: held; ARGV: prefix, token, GPUs.
GIVE_BACK = """
for i = 3, #ARGV do
    local key, holder = ARGV[1] .. 'gpu:' .. ARGV[i], redis.call('HGET', KEYS[1], ARGV[i])
    if redis.call('GET', key) == ARGV[2] then redis.call('DEL', key) end
    if holder and cjson.decode(holder).token == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
return 1
"""
# KEYS: held, lease; ARGV: GPU, token.
CLEAR = """
local holder = redis.call('HGET', KEYS[1], ARGV[1])
if redis.call('EXISTS', KEYS[2]) == 1 or not holder or cjson.decode(holder).token ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
"""


class GpuLeases:
    """All reads and writes of GPU leases."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    def ask(self, holder: GpuHolder, count: int, pool: list[str], usable: list[str], lease_s: float) -> list[str]:
        """Stand in line for `count` GPUs, or stay in it, and take them when it is this run's turn and they are free.

        A run that waits asks again within `WAIT_LIFE_S`, or loses its place.

        Args:
            holder: the run that asks.
            pool: all GPUs that would do.
            usable: those of them that the caller has found empty just now.
            lease_s: seconds until what was taken expires, unless it is renewed.

        Returns:
            `count` GPUs, or none.
        """
        wish = json.dumps({"count": count, "gpus": pool, "usable": usable})
        times = (int(lease_s * 1000), int(WAIT_LIFE_S * 1000))
        arguments = (PREFIX, holder.token, wish, holder.model_dump_json(), *times)
        return list(cast("list[str]", self._run(ASK, [HELD, LINE, NUMBER], *arguments)))

    def withdraw(self, token: str) -> None:
        """Leave the line."""
        self.redis.zrem(LINE, token)
        self.redis.delete(f"{PREFIX}gpus:wait:{token}")

    def waiting(self) -> int:
        """How many runs stand in line now."""
        tokens = cast("list[str]", self.redis.zrange(LINE, 0, -1))
        return int(self.redis.exists(*[f"{PREFIX}gpus:wait:{token}" for token in tokens])) if tokens else 0

    def renew(self, holder: GpuHolder, gpus: list[str], lease_s: float) -> bool:
        """Prolong leases, also those that expired or that Redis lost; False when another run had one meanwhile."""
        arguments = (PREFIX, holder.token, holder.model_dump_json(), int(lease_s * 1000), *gpus)
        return bool(self._run(RENEW, [HELD], *arguments))

    def give_back(self, token: str, gpus: list[str]) -> None:
        """End leases; to be called when no process of the run is left on these GPUs."""
        self._run(GIVE_BACK, [HELD], PREFIX, token, *gpus)

    def quarantined(self, gpus: list[str]) -> dict[str, GpuHolder]:
        """Those of `gpus` whose run is gone without giving them back, with that run."""
        if not gpus:
            return {}
        leased = cast("list[str | None]", self.redis.mget([lease_key(gpu) for gpu in gpus]))
        held = cast("list[str | None]", self.redis.hmget(HELD, gpus))
        return {
            gpu: GpuHolder.model_validate_json(holder)
            for gpu, token, holder in zip(gpus, leased, held, strict=True)
            if token is None and holder is not None
        }

    def clear(self, gpu: str, token: str) -> bool:
        """End a quarantine: the GPU was found empty of everything that the run `token` had on it."""
        return bool(self._run(CLEAR, [HELD, lease_key(gpu)], gpu, token))

    def holders(self) -> dict[str, GpuHolder]:
        """Who has each GPU, or had it last without giving it back."""
        held = cast("dict[str, str]", self.redis.hgetall(HELD))
        return {gpu: GpuHolder.model_validate_json(holder) for gpu, holder in held.items()}

    def _run(self, script: str, keys: list[str], *arguments: Any) -> Any:
        return self.redis.eval(script, len(keys), *keys, *arguments)


def lease_key(gpu: str) -> str:
    """Redis key of the lease on a GPU."""
    return f"{PREFIX}gpu:{gpu}"
