"""Checks of what this machine shall reach: Redis, the gateway, the verifier.

Where nobody has named a server, one at the default address is looked at, and none there is no problem.
"""

import time
from typing import Any

import httpx
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from services.cli.credentials import key_for
from services.cli.doctor.checks import Finding
from services.cli.errors import ApiError, error_of
from shared.settings import Settings

TIMEOUT_S = 3.0
OLDEST_REDIS = (6, 2)


def check_redis(settings: Settings) -> Finding:
    """Whether Redis answers, and keeps what it is told."""
    address = settings.redis_url.rsplit("@", 1)[-1]
    try:
        client: Redis = Redis.from_url(
            settings.redis_url,
            decode_responses=True,
            socket_connect_timeout=TIMEOUT_S,
            socket_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        with client:
            started = time.monotonic()
            client.ping()
            latency_ms = round((time.monotonic() - started) * 1000, 1)
            info: dict[str, Any] = dict(client.info())
            appendfsync = _config(client, "appendfsync")
    except (RedisError, ValueError) as error:
        if "redis_url" in settings.model_fields_set:
            hint = "start it, or set EYRIE_REDIS_URL to where it is; a password or a firewall may be in the way"
            return Finding("problem", f"{address} does not answer: {error}", hint, {"url": address})
        hint = "set EYRIE_REDIS_URL where a gateway or worker shall run on this machine"
        return Finding("info", f"EYRIE_REDIS_URL is not set, and nothing answers at {address}", hint, {"url": address})
    details = {
        "url": address,
        "version": info.get("redis_version"),
        "aof": bool(info.get("aof_enabled")),
        "appendfsync": appendfsync,
        "maxmemory_policy": info.get("maxmemory_policy"),
        "used_memory_bytes": info.get("used_memory"),
        "role": info.get("role"),
        "latency_ms": latency_ms,
    }
    return _judge_redis(details)


def check_gateway(url: str, is_set: bool) -> Finding:
    """Whether the gateway answers, can work, takes our API key, and has workers."""
    details: dict[str, Any] = {"url": url}
    try:
        with httpx.Client(base_url=url, timeout=TIMEOUT_S, auth=key_for(url)) as http:
            ready = http.get("/readyz")
            if not ready.is_success:
                hint = "the gateway's log says more; `eyrie doctor` on its machine too"
                return Finding("problem", f"{url} cannot work: {error_of(ready).message}", hint, details)
            workers = http.get("/v1/workers")
            if not workers.is_success:
                hint = (
                    "set EYRIE_API_KEY_FILE or --api-key-file" if workers.status_code == 401 else "update the gateway"
                )
                return Finding("problem", f"{url}: {error_of(workers).message}", hint, details)
            details["workers"] = len(workers.json()["data"])
    except ApiError as error:
        return Finding("problem", error.message, "", details)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError) as error:
        if is_set:
            return Finding(
                "problem", f"{url} does not answer: {error}", "start it, or check --url (EYRIE_URL)", details
            )
        hint = "`make up-local` starts one; --url (EYRIE_URL) says where another is"
        return Finding("info", f"EYRIE_URL is not set, and nothing answers at {url}", hint, details)
    if not details["workers"]:
        return Finding("warning", f"{url} answers, and no worker lives", "jobs wait until one is started", details)
    return Finding("ok", f"{url} answers; workers: {details['workers']}", details=details)


def check_verifier(settings: Settings) -> Finding:
    """Whether the fleet's own verifier answers, and with which model."""
    url = (settings.verifier_url or "").rstrip("/")
    if not url:
        return Finding(
            "info", "EYRIE_VERIFIER_URL is not set", "jobs then name a verifier, or have the worker start one"
        )
    details: dict[str, Any] = {"url": url}
    hint = "start it (python -m services.verifier); it answers only when its weights are loaded"
    try:
        with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False) as http:
            health = http.get("/health")
            models = http.get("/v1/models")
            details["models"] = [str(model.get("id")) for model in models.raise_for_status().json()["data"]]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Finding("problem", f"{url} does not answer as vLLM does: {error}", hint, details)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Finding("problem", f"{url} does not answer as vLLM does", "check EYRIE_VERIFIER_URL", details)
    if not health.is_success:
        return Finding("problem", f"{url}: /health answers {health.status_code}", "look at its log", details)
    return Finding("ok", f"{url} serves {', '.join(details['models']) or 'nothing'}", details=details)


def _judge_redis(details: dict[str, Any]) -> Finding:
    wrong, todo = [], []
    version = str(details["version"])
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST_REDIS:
        wrong.append("it is too old")
        todo.append("use Redis 6.2 or 7")
    if details["maxmemory_policy"] != "noeviction":
        wrong.append(f"it may throw jobs away (maxmemory-policy {details['maxmemory_policy']})")
        todo.append("set maxmemory-policy noeviction")
    if not details["aof"]:
        wrong.append("it forgets what it was told when it ends (no AOF)")
        todo.append("set appendonly yes and appendfsync always")
    elif details["appendfsync"] not in (None, "always"):
        wrong.append(f"it may forget the last second (appendfsync {details['appendfsync']})")
        todo.append("set appendfsync always")
    if details["role"] not in (None, "master"):
        wrong.append(f"it is a {details['role']}, which cannot be written")
        todo.append("name the master in EYRIE_REDIS_URL")
    summary = f"{details['url']}: Redis {version}, {details['latency_ms']} ms"
    if wrong:
        return Finding("problem", f"{summary}; {'; '.join(wrong)}", "; ".join(todo), details)
    if details["appendfsync"] is None:
        hint = "it does not let us ask: make sure that appendfsync is always"
        return Finding("warning", f"{summary}, AOF, noeviction", hint, details)
    return Finding("ok", f"{summary}, AOF (always), noeviction", details=details)


def _config(client: Redis, name: str) -> str | None:
    """A setting of Redis, or None where it does not let us ask, as hosted ones do."""
    try:
        values: Any = client.config_get(name)
    except ResponseError:
        return None
    return values.get(name) if isinstance(values, dict) else None
