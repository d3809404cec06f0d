"""Text that people send is shown as text; and the page asks for a key where the gateway does."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenWindow
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.page_site import PageSite
from tests.support.redis_server import redis_server

HOSTILE = "<img src=x onerror=\"document.title='broken in'\"><b>bold</b>"
KEY = "eyk_" + "A1b2C3d4" * 6


def test_text_of_others_is_never_markup(window: OpenWindow, site: PageSite) -> None:
    opened = window()
    metadata = {HOSTILE[:60]: HOSTILE, "train": f"leave note.txt {HOSTILE}", "log": HOSTILE, "steps": "3"}
    job_id = site.submit("hostile", metadata=metadata, data={"system_prompt": HOSTILE})
    site.wait_for(job_id, "succeeded")
    page = opened.open(f"jobs/{job_id}")
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    for tab, place in [("logs", ".log"), ("document", "pre.code")]:
        page.goto(f"{site.url}/#/jobs/{job_id}/{tab}")
        expect(page.locator(place)).to_contain_text("<b>bold</b>")
    assert page.locator("main img, main b").count() == 0
    assert "broken in" not in page.title()


def test_ids_in_the_address_are_only_ever_ids(window: OpenWindow, site: PageSite) -> None:
    opened = window()
    opened.excused = ("status of 404",)
    page = opened.open("jobs/" + "..%2F..%2Fopenapi.json")
    expect(page.get_by_role("alert")).to_contain_text("there is nothing at this address")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GatewayProcess]:
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    with redis_server(tmp_path / "redis") as redis, gateway_process(tmp_path, redis.url, api_key_file=str(key)) as made:
        yield made


def test_the_page_asks_for_a_key_and_works_with_its_session(window: OpenWindow, guarded: GatewayProcess) -> None:
    opened = window(url=guarded.url)
    opened.excused = ("status of 401",)
    page = opened.page
    page.goto(guarded.url)
    page.get_by_label("API key").fill("eyk_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1, name="Jobs")).to_be_visible()
    expect(page.get_by_text("No jobs yet.")).to_be_visible()
    expect(page.locator(".liveness")).to_have_attribute("data-state", "live")

    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_text("/data/dataset").first).to_be_visible()

    page.context.clear_cookies()
    page.get_by_role("link", name="Fleet").click()
    expect(page.get_by_label("API key")).to_be_visible()
