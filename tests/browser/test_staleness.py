"""A page whose gateway goes away says so, keeps what it has, and is right again by itself."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from shared.artifact_store import LocalArtifactStore
from shared.schemas.job import Stage
from shared.stage_logs import LogName, begin_log
from tests.browser.conftest import OpenWindow
from tests.support.page_site import PageSite, page_site

AWAY = ("net::ERR_",)  # what Chromium says of a gateway that does not answer


@pytest.fixture
def own_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageSite]:
    with page_site(tmp_path_factory.mktemp("stale"), workers=0) as made:
        yield made


def test_a_lost_gateway_is_said_and_forgotten_when_it_is_back(window: OpenWindow, own_site: PageSite) -> None:
    opened = window(url=own_site.url)
    opened.excused = AWAY
    first = own_site.submit("before")
    page = opened.open()
    state = page.locator(".liveness")
    expect(state).to_have_attribute("data-state", "live")
    expect(page.locator(f"[data-job={first}]")).to_be_visible()

    own_site.stop_gateway()
    notice = page.locator(".stale")
    expect(notice).to_contain_text("Connection lost")
    expect(state).to_have_attribute("data-state", "stale")
    expect(page.locator(f"[data-job={first}]")).to_be_visible()

    own_site.start_gateway()
    second = own_site.submit("after")
    expect(notice).to_have_count(0)
    expect(state).to_have_attribute("data-state", "live")
    expect(page.locator(f"[data-job={second}]")).to_be_visible()
    third = own_site.submit("live again")
    expect(page.locator(f"[data-job={third}]")).to_be_visible()


def test_a_log_has_no_gap_where_the_page_was_not_seen(window: OpenWindow, own_site: PageSite) -> None:
    job = own_site.submit("talkative")
    log = begin_log(LocalArtifactStore(own_site.folder / "store"), job, LogName(Stage.PREPARE, 1))
    log.write_text("line 0\n")
    opened = window(url=own_site.url)
    opened.excused = AWAY
    page = opened.open(f"jobs/{job}/logs")
    expect(page.locator(".log-line")).to_have_text(["line 0\n"])
    see = "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    see += " document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(see, True)
    with log.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(1, 2500))
    page.evaluate(see, False)
    expect(page.locator(".log-line")).to_have_count(2500)


def test_a_page_tries_again_when_asked_to(window: OpenWindow, own_site: PageSite) -> None:
    opened = window(url=own_site.url)
    opened.excused = AWAY
    page = opened.open("fleet")
    expect(page.locator(".liveness")).to_have_attribute("data-state", "live")
    own_site.stop_gateway()
    expect(page.locator(".stale")).to_be_visible()
    with page.expect_request(lambda request: request.url.startswith(f"{own_site.url}/v1/gpus")):
        page.get_by_role("button", name="Try now").click()
    own_site.start_gateway()
    expect(page.locator(".stale")).to_have_count(0)
    expect(page.locator(".liveness")).to_have_attribute("data-state", "live")
