"""Leases in Redis: a key that holds its owner's token and expires when the owner falls silent."""

from redis import Redis

RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
ACQUIRE_ALL = """
for _, key in ipairs(KEYS) do
    local owner = redis.call('GET', key)
    if owner and owner ~= ARGV[1] then return 0 end
end
for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'PX', ARGV[2]) end
return 1
"""


def acquire(redis: Redis, keys: list[str], token: str, lease_s: float) -> bool:
    """Take all of `keys` for `token`, or none; keys that `token` holds already are prolonged."""
    return bool(redis.eval(ACQUIRE_ALL, len(keys), *keys, token, int(lease_s * 1000)))


def release(redis: Redis, key: str, token: str) -> None:
    """Give a lease back, if `token` still holds it."""
    redis.eval(RELEASE, 1, key, token)
