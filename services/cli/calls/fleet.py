"""Calls on what the service has and keeps: workers, GPUs, verifiers, presets, and what can be cleared away."""

from typing import cast

import httpx

from services.cli.calls.base import PAGE, TIMEOUT_S, Calls, JsonObject, address


class FleetCalls(Calls):
    """`/v1/workers`, `/v1/gpus`, `/v1/verifiers`, `/v1/presets` and `/v1/gc`."""

    def list_fleet(self, collection: str, limit: int = PAGE) -> list[JsonObject]:
        """The `workers`, `gpus` or `verifiers` there are."""
        return self._list(f"/v1/{collection}", limit)

    def get_fleet(self, collection: str, entry: str) -> JsonObject:
        """One of the `workers`, `gpus` or `verifiers`."""
        return self._get(address(collection, entry))

    def list_presets(self) -> list[JsonObject]:
        """The presets."""
        return cast("list[JsonObject]", self._get("/v1/presets")["data"])

    def collect_garbage(self, *, apply: bool, retention_days: float | None = None) -> JsonObject:
        """What nothing refers to any more; with `apply` it is removed, which may take a while."""
        body = {"apply": apply, "retention_days": retention_days}
        return self._object("POST", "/v1/gc", json=body, timeout=httpx.Timeout(TIMEOUT_S, read=3600))
