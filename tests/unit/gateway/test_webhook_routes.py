"""Webhooks of a gateway that is told of no host, or of a list that cannot be read."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from services.gateway.app import create_app
from shared.errors import UserError
from shared.settings import Settings


def settings(folder: Path, hosts: str = "") -> Settings:
    return Settings(redis_url="redis://127.0.0.1:9/0", store_root=folder, webhook_hosts=hosts)


def test_without_hosts_there_are_no_webhooks(tmp_path: Path) -> None:
    client = TestClient(create_app(settings(tmp_path)))
    refused = client.post("/v1/webhooks", json={"url": "http://127.0.0.1:80/"})
    assert (refused.status_code, "EYRIE_WEBHOOK_HOSTS" in refused.json()["detail"]) == (422, True)
    assert client.get("/v1/webhooks").json()["data"] == []
    assert client.get("/v1/webhooks/wh_x").status_code == 404


def test_a_webhook_is_shown_without_its_secret_and_deleted_with_its_log(tmp_path: Path) -> None:
    client = TestClient(create_app(settings(tmp_path, "hooks.example.org")))
    made = client.post("/v1/webhooks", json={"url": "https://hooks.example.org/a"}).json()
    assert made["secret"].startswith("whsec_")
    assert made["events"] == ["job.cancelled", "job.failed", "job.succeeded"]
    path = f"/v1/webhooks/{made['id']}"
    assert client.get(path).json() == {name: value for name, value in made.items() if name != "secret"}
    assert client.post(f"{path}/test").json()["status"] == "pending"
    assert [entry["attempts"] for entry in client.get(f"{path}/deliveries").json()["data"]] == [[]]
    assert client.delete(path).json() == {"id": made["id"], "object": "webhook", "deleted": True}
    assert client.get(path).status_code == 404
    assert not list((tmp_path / "webhooks").iterdir())


def test_a_list_of_hosts_that_cannot_be_read_stops_the_gateway(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="EYRIE_WEBHOOK_HOSTS"):
        create_app(settings(tmp_path, "https://hooks.example.org"))
