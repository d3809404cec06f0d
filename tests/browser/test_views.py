"""Every view, at a desk's and a phone's width, light and dark: no accessibility finding that matters, nothing cut off.

Leaves a screenshot of each in the folder that EYRIE_SCREENSHOTS names (`var/screenshots`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS, OpenWindow
from tests.support.page_site import Furniture, PageSite

MATTERS = {"serious", "critical"}

Route = Callable[[Furniture, PageSite], str]
# By view: its address, and what is there when it is complete.
VIEWS: dict[str, tuple[Route, str]] = {
    "jobs": (lambda made, site: "jobs", ".job-row"),
    "job-running": (lambda made, site: f"jobs/{made.running}", "canvas"),
    "job-succeeded": (lambda made, site: f"jobs/{made.succeeded}", "canvas"),
    "job-failed": (lambda made, site: f"jobs/{made.failed}", ".failure"),
    "job-logs": (lambda made, site: f"jobs/{made.running}/logs", ".log-line"),
    "job-events": (lambda made, site: f"jobs/{made.succeeded}/events", ".event"),
    "job-artifacts": (lambda made, site: f"jobs/{made.succeeded}/artifacts", ".files a"),
    "job-document": (lambda made, site: f"jobs/{made.succeeded}/document", "pre.code"),
    "job-lineage": (lambda made, site: f"jobs/{made.succeeded}/lineage", ".tree-node"),
    "submit": (lambda made, site: "submit", ".field select option:nth-child(2)"),
    "drafts": (lambda made, site: "drafts", ".draft-row"),
    "draft": (lambda made, site: f"drafts/{made.draft(site, made.better)}", ".tree-node"),
    "compare": (
        lambda made, site: f"compare?draft={made.draft(site, made.succeeded)}&draft={made.draft(site, made.better)}",
        ".measured",
    ),
    "fleet": (lambda made, site: "fleet", "[data-gpu]"),
    "not-found": (lambda made, site: "nowhere", ".empty"),
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_can_be_read_by_everybody(
    view: str, width: int, dark: bool, window: OpenWindow, gallery: PageSite, furniture: Furniture, screenshots: Path
) -> None:
    address, complete = VIEWS[view]
    page = window(width, dark, at=gallery).open(address(furniture, gallery))
    expect(page.locator(complete).first).to_be_attached()
    expect(page.locator(".loading")).to_have_count(0)
    page.screenshot(path=screenshots / f"{view}-{width}{'-dark' if dark else ''}.png", full_page=True)
    assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("h1").count() == 1


def findings(page: Page) -> list[tuple[str, Any]]:
    """What axe finds serious or worse, with the elements."""
    violations = Axe().run(page).response["violations"]
    return [(one["id"], [node["html"] for node in one["nodes"]]) for one in violations if one["impact"] in MATTERS]
