"""The page in a real Chromium, before a real gateway. What every test holds: no error in the console, no other host.

Chromium is the system's own: `CHROMIUM` names it, else it is found on PATH (`apt-get install chromium`).
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests.support.gateway_process import ROOT
from tests.support.page_site import Furniture, PageSite, furnish, page_site

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
WIDTHS = {1440: ViewportSize(width=1440, height=900), 390: ViewportSize(width=390, height=844)}
PATIENCE_MS = 60_000  # stages are processes that start; a busy machine takes its time

expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("api")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageSite]:
    with page_site(tmp_path_factory.mktemp("page")) as made:
        yield made


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageSite]:
    """A site of its own for what is only looked at: its workers are busy for good."""
    with page_site(tmp_path_factory.mktemp("gallery")) as made:
        yield made


@pytest.fixture(scope="session")
def furniture(gallery: PageSite) -> Furniture:
    return furnish(gallery)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@dataclass
class Window:
    """A page, and what it should not have done.

    Attributes:
        errors: what the console and the scripts complained about.
        elsewhere: requests to another host than the gateway.
        excused: parts of complaints that the test itself provokes.
    """

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    excused: tuple[str, ...] = ()

    @property
    def unexcused(self) -> list[str]:
        """What it complained about, without what the test provokes."""
        return [error for error in self.errors if not any(words in error for words in self.excused)]

    def open(self, route: str = "jobs") -> Page:
        """Go to a view."""
        self.page.goto(f"{self.url}/#/{route}")
        return self.page


OpenWindow = Callable[..., Window]


@pytest.fixture
def window(browser: Browser, request: pytest.FixtureRequest) -> Iterator[OpenWindow]:
    """Opens windows; at the end none of them may have had an error."""
    opened: list[Window] = []

    def make(width: int = 1440, dark: bool = False, at: PageSite | None = None, url: str | None = None) -> Window:
        context = browser.new_context(viewport=WIDTHS[width], color_scheme="dark" if dark else "light")
        context.set_default_timeout(PATIENCE_MS)
        address = url or (at or request.getfixturevalue("site")).url
        made = Window(context.new_page(), address)
        follow(made)
        opened.append(made)
        return made

    yield make
    for made in opened:
        made.page.context.close()
    assert [made.unexcused for made in opened if made.unexcused] == []
    assert [made.elsewhere for made in opened if made.elsewhere] == []


@pytest.fixture
def page(window: OpenWindow) -> Page:
    """A window of a desk's width, at the list of jobs."""
    return window().open()


@pytest.fixture
def gallery_page(window: OpenWindow, gallery: PageSite, furniture: Furniture) -> Page:
    """The same, where there is something of everything."""
    return window(at=gallery).open()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    folder = Path(os.environ.get("EYRIE_SCREENSHOTS") or ROOT / "var" / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def follow(window: Window) -> None:
    """Write down what goes wrong in a window."""
    host = urlsplit(window.url).netloc
    window.page.on("console", lambda said: window.errors.append(said.text) if said.type == "error" else None)
    window.page.on("pageerror", lambda error: window.errors.append(str(error)))
    window.page.context.on(
        "request",
        lambda request: None if urlsplit(request.url).netloc == host else window.elsewhere.append(request.url),
    )


def find_chromium() -> str:
    """The browser's path.

    Raises:
        pytest.fail.Exception: there is none.
    """
    found = os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail("there is no Chromium: install Debian's package `chromium`, or set CHROMIUM to its path")
    return found
