"""Calls on API keys and webhooks."""

from collections.abc import Sequence

from services.cli.calls.base import PAGE, Calls, JsonObject, address


class AccessCalls(Calls):
    """`/v1/api-keys` and `/v1/webhooks`."""

    def create_key(self, name: str | None = None) -> JsonObject:
        """Make an API key; the answer is the only place where it stands."""
        return self._object("POST", "/v1/api-keys", json={"name": name} if name else {})

    def list_keys(self, limit: int = PAGE) -> list[JsonObject]:
        """The API keys, without what they are."""
        return self._list("/v1/api-keys", limit)

    def delete_key(self, key_id: str) -> JsonObject:
        """Have an API key work no longer."""
        return self._delete(address("api-keys", key_id))

    def create_webhook(self, url: str, events: Sequence[str] = (), description: str | None = None) -> JsonObject:
        """Have a URL called when jobs end; the answer is the only place where its secret stands."""
        body = {"url": url} | ({"events": list(events)} if events else {})
        return self._object("POST", "/v1/webhooks", json=body | ({"description": description} if description else {}))

    def list_webhooks(self, limit: int = PAGE) -> list[JsonObject]:
        """The newest `limit` webhooks."""
        return self._list("/v1/webhooks", limit)

    def get_webhook(self, webhook_id: str) -> JsonObject:
        """One webhook."""
        return self._get(address("webhooks", webhook_id))

    def test_webhook(self, webhook_id: str) -> JsonObject:
        """Have a test message sent; what became of it."""
        return self._object("POST", address("webhooks", webhook_id, "test"))

    def list_deliveries(self, webhook_id: str, limit: int = PAGE) -> list[JsonObject]:
        """What was sent to a webhook, and how that went."""
        return self._list(address("webhooks", webhook_id, "deliveries"), limit)

    def delete_webhook(self, webhook_id: str) -> JsonObject:
        """Call a URL no longer."""
        return self._delete(address("webhooks", webhook_id))
