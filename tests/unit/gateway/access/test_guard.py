"""Every route asks for a key, whoever wrote it: the app's own list of routes is walked."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute, Mount, Route
from starlette.testclient import TestClient

from services.gateway.access.guard import OPEN, OPEN_BELOW
from services.gateway.app import create_app
from shared.settings import Settings

KEY = "a-key-of-the-tests-0123456789"
NO_REDIS = "redis://127.0.0.1:9/0"


def make_app(folder: Path, *, key: str | None = KEY, **settings: object) -> FastAPI:
    file = None
    if key is not None:
        file = folder / "key"
        file.write_text(f" {key}\n")
    return create_app(Settings(redis_url=NO_REDIS, store_root=folder / "store", api_key_file=file, **settings))


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    return make_app(tmp_path)


def requests_of(routes: list[BaseRoute], below: str = "") -> Iterator[tuple[str, str]]:
    """Method and path of one request to each route."""
    for route in routes:
        if isinstance(route, Route):
            for method in route.methods or {"GET"}:
                yield method, below + route.path.replace("{", "").replace(":path}", "").replace("}", "")
        elif isinstance(route, Mount):
            yield "GET", f"{below}{route.path}/anything"
            yield from requests_of(list(route.routes or []), below + route.path)
        elif hasattr(route, "original_router"):
            yield from requests_of(route.original_router.routes, below)
        else:
            raise AssertionError(f"what requests does {route!r} take?")


def test_every_route_but_health_asks_for_a_key(app: FastAPI) -> None:
    @app.get("/v1/added-tomorrow")
    def added() -> dict[str, str]:
        return {"secret": "yes"}

    client = TestClient(app, raise_server_exceptions=False, follow_redirects=False)
    seen = set(requests_of(list(app.routes)))
    paths = {path for _, path in seen}
    assert {"/docs", "/openapi.json", "/metrics", "/v1/jobs", "/v1/added-tomorrow", "/docs-assets/anything"} <= paths
    assert len(seen) > 40
    for method, path in sorted(seen):
        if path in OPEN or path.startswith(OPEN_BELOW) or path == "/":
            continue
        answer = client.request(method, path, headers={"Content-Type": "application/json"})
        assert answer.status_code == 401, (method, path)
        assert answer.headers["www-authenticate"] == 'Bearer realm="eyrie"'
        if method != "HEAD":
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["type"] == "urn:eyrie:problem:unauthorized"
    assert client.get("/nowhere").status_code == 401
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 503  # its own answer: there is no Redis


@pytest.mark.parametrize(
    "header",
    ["Bearer wrong", "Bearer ", "Bearer", f"Basic {KEY}", KEY, f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer \xff"],
)
def test_a_wrong_key_is_refused(app: FastAPI, header: str) -> None:
    answer = TestClient(app).get("/v1/presets", headers={"Authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert KEY not in answer.text


def test_the_key_of_the_file_works_without_redis(app: FastAPI) -> None:
    for scheme in ("Bearer", "bearer"):
        assert TestClient(app).get("/v1/presets", headers={"Authorization": f"{scheme} {KEY}"}).status_code == 200


def test_a_browser_is_led_to_the_form(app: FastAPI) -> None:
    client = TestClient(app, follow_redirects=False)
    answer = client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    answer = client.get("/docs", headers={"Accept": "text/html,*/*"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/docs")
    form = client.get("/login?next=/docs")
    assert 'value="/docs"' in form.text
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", '/"><script>'):
        page = client.get("/login", params={"next": elsewhere}).text
        assert "evil" not in page
        assert "<script>" not in page


def test_the_schema_says_how_to_send_the_key(app: FastAPI, tmp_path: Path) -> None:
    schema = TestClient(app).get("/openapi.json", headers={"Authorization": f"Bearer {KEY}"}).json()
    assert schema["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    assert schema["security"] == [{"apiKey": []}]
    assert schema["paths"]["/healthz"]["get"]["security"] == []
    assert "security" not in schema["paths"]["/v1/jobs"]["post"]
    assert KEY not in json.dumps(schema)
    keyless = make_app(tmp_path, key=None)
    assert "security" not in TestClient(keyless).get("/openapi.json").json()


@pytest.mark.parametrize(
    ("server", "status"),
    [("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("10.0.0.5", 403), ("2001:db8::1", 403)],
)
def test_without_a_key_only_loopback_is_answered(tmp_path: Path, server: str, status: int) -> None:
    """Also under `uvicorn --factory`, where nothing else checks the address."""
    app = make_app(tmp_path, key=None)
    host = f"[{server}]" if ":" in server else server
    assert TestClient(app, base_url=f"http://{host}").get("/v1/presets").status_code == status
    opened = make_app(tmp_path, key=None, insecure_no_api_key=True)
    assert TestClient(opened, base_url=f"http://{host}").get("/v1/presets").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8700", 200),
        ("LOCALHOST.", 200),
        ("eyrie.localhost", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8700", 200),
        ("evil.example", 403),
        ("localhost.evil.example:8700", 403),
        ("127.0.0.1.evil.example", 403),
        ("10.0.0.5", 403),
    ],
)
def test_without_a_key_a_name_that_another_site_has_turned_here_reads_nothing(
    tmp_path: Path, host: str, status: int
) -> None:
    client = TestClient(make_app(tmp_path, key=None), base_url="http://127.0.0.1")
    assert client.get("/v1/presets", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("sent_by_a_browser", "status"),
    [
        ({}, 422),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}, 422),
        ({"Sec-Fetch-Site": "none"}, 422),
        ({"Origin": "http://localhost"}, 422),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_without_a_key_another_sites_page_changes_nothing(
    tmp_path: Path, sent_by_a_browser: dict[str, str], status: int
) -> None:
    for settings in ({}, {"insecure_no_api_key": True}):
        app = make_app(tmp_path, key=None, **settings)
        client = TestClient(app, base_url="http://127.0.0.1", headers={"Host": "localhost", **sent_by_a_browser})
        refused = client.post("/v1/jobs", content="{}", headers={"Content-Type": "text/plain"})
        assert (refused.status_code, refused.headers["content-type"]) == (status, "application/problem+json")
        assert client.get("/v1/presets").status_code == 200


def test_keys_that_were_made_are_needed_without_the_file_too(tmp_path: Path) -> None:
    first = TestClient(make_app(tmp_path))
    made = first.post("/v1/api-keys", headers={"Authorization": f"Bearer {KEY}"}).json()
    later = TestClient(make_app(tmp_path, key=None))
    assert later.get("/v1/presets").status_code == 401
    assert later.get("/v1/presets", headers={"Authorization": f"Bearer {KEY}"}).status_code == 401
    own = {"Authorization": f"Bearer {made['key']}"}
    assert later.get("/v1/presets", headers=own).status_code == 200
    assert later.delete(f"/v1/api-keys/{made['id']}", headers=own).status_code == 409  # nobody could use it any more
    assert later.get("/v1/presets", headers=own).status_code == 200
