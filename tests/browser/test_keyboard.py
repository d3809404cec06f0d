"""Everything can be reached, and done, without a pointer; and it can be seen where the focus is."""

from playwright.sync_api import Page, expect

from tests.support.page_site import PageSite

MOST_STEPS = 60


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus.

    Raises:
        AssertionError: it never has.
    """
    for _ in range(MOST_STEPS):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement?.matches(selector) ?? false", selector):
            return
    raise AssertionError(f"Tab does not lead to {selector}")


def test_a_job_is_found_read_and_cancelled_with_the_keyboard_alone(page: Page, site: PageSite) -> None:
    job_id = site.submit("by keyboard", metadata={"steps": "4000", "step_s": "0.2"})
    expect(page.locator(f"[data-job={job_id}]")).to_be_visible()
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    tab_to(page, f"[data-job={job_id}] a")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="by keyboard")).to_be_focused()
    tab_to(page, "a[href$='/logs']")
    page.keyboard.press("Enter")
    tab_to(page, ".log")
    page.go_back()

    cancel = page.get_by_role("button", name="Cancel")
    expect(cancel).to_be_visible()
    cancel.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(cancel).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, "dialog .is-danger")
    page.keyboard.press("Enter")
    expect(page.locator(".heading .status")).to_have_text("cancelled")
    assert site.job(job_id)["status"] == "cancelled"


def test_a_job_is_planned_with_the_keyboard_alone(page: Page, site: PageSite) -> None:
    site.dataset("for the keyboard")
    page.goto(f"{site.url}/#/submit")
    expect(page.get_by_label("Dataset")).to_contain_text("for the keyboard")
    page.locator("main").focus()
    tab_to(page, "select")
    page.keyboard.type("tiny")
    tab_to(page, "select")
    page.keyboard.type("for the keyboard")
    tab_to(page, ".submit-buttons button")
    page.keyboard.press("Enter")
    expect(page.get_by_text("The job can be submitted.")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Submit", exact=True)).to_be_focused()


def test_drafts_are_ticked_and_compared_with_the_keyboard_alone(gallery_page: Page) -> None:
    gallery_page.locator("nav.places a[href='#/drafts']").focus()
    gallery_page.keyboard.press("Enter")
    expect(gallery_page.locator(".draft-row").nth(1)).to_be_visible()
    for row in (1, 2):
        tab_to(gallery_page, f".draft-row:nth-child({row}) input")
        gallery_page.keyboard.press("Space")
    gallery_page.get_by_role("button", name="Compare").focus()
    gallery_page.keyboard.press("Enter")
    expect(gallery_page.get_by_role("heading", level=1, name="Compare drafts")).to_be_focused()
    expect(gallery_page.locator(".measured").first).to_be_visible()
