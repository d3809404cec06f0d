"""Calls on what the service has and keeps: presets, and what can be cleared away."""

from typing import cast

import httpx

from services.cli.calls.base import TIMEOUT_S, Calls, JsonObject


class FleetCalls(Calls):
    """`/v1/presets` and `/v1/gc`."""

    def list_presets(self) -> list[JsonObject]:
        """The presets."""
        return cast("list[JsonObject]", self._get("/v1/presets")["data"])

    def collect_garbage(self, *, apply: bool, retention_days: float | None = None) -> JsonObject:
        """What nothing refers to any more; with `apply` it is removed, which may take a while."""
        body = {"apply": apply, "retention_days": retention_days}
        return self._object("POST", "/v1/gc", json=body, timeout=httpx.Timeout(TIMEOUT_S, read=3600))
