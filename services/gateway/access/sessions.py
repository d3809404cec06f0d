"""Sessions of the page: who gives a key at `/login` gets a cookie, since a browser cannot send the key itself.

Redis has `eyrie:session:DIGEST` (the id of the key) for `LIFE_S`. A session ends with its key; an emptied Redis only
means to log in again.
"""

import secrets
from typing import cast

from redis import Redis

from services.gateway.access.api_keys import ApiKeys, digest
from shared.live_jobs import PREFIX

COOKIE = "eyrie_session"
LIFE_S = 12 * 3600


class Sessions:
    """Starts, finds and ends sessions."""

    def __init__(self, redis: Redis, keys: ApiKeys) -> None:
        self.redis, self.keys = redis, keys

    def start(self, key_id: str) -> str:
        """Start a session of a key; returns what its cookie holds."""
        token = secrets.token_urlsafe(32)
        self.redis.set(_name(token), key_id, ex=LIFE_S)
        return token

    def find(self, token: str) -> str | None:
        """The id of the session's key, if the session lives and the key still works."""
        key_id = cast("str | None", self.redis.get(_name(token)))
        return key_id if key_id is not None and self.keys.exists(key_id) else None

    def end(self, token: str) -> None:
        """End a session."""
        self.redis.delete(_name(token))


def _name(token: str) -> str:
    return f"{PREFIX}session:{digest(token)}"
