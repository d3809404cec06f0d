"""Drafts side by side, and their tags."""

import re

from playwright.sync_api import Page, expect

from tests.support.page_site import Furniture, PageSite


def test_drafts_are_compared_by_suite_and_position_before_and_after_training(
    gallery_page: Page, gallery: PageSite, furniture: Furniture
) -> None:
    drafts = [furniture.draft(gallery, job) for job in (furniture.succeeded, furniture.better)]
    gallery_page.get_by_role("link", name="Drafts").click()
    compare = gallery_page.get_by_role("button", name="Compare")
    expect(compare).to_be_disabled()
    for draft in drafts:
        gallery_page.get_by_label(f"Compare {draft}").check()
    compare.click()
    table = gallery_page.get_by_role("region", name="Figures of heldout").locator("tbody tr")
    expect(table).to_have_count(2)
    cells = {row.split("\t")[0]: row.split("\t")[1:] for row in table.all_inner_texts()}
    first, better = (cells[name] for name in ("first draft", "better draft"))
    assert first[0] == better[0] == "1.18"  # neither has learnt anything yet
    assert 1.5 < float(first[1]) < float(better[1])
    assert float(better[2].removeprefix("×")) > 2
    shares = [int(re.match(r"\d+", cell).group()) for cell in better[3:]]  # type: ignore[union-attr]
    assert len(shares) == 3
    assert shares == sorted(shares, reverse=True)
    expect(gallery_page.locator(".measured", has_text="better draft")).to_contain_text("longest")
    differences = gallery_page.get_by_role("region", name="Where their jobs differ").locator("tbody")
    expect(differences).to_contain_text("train/lr")


def test_a_tag_is_given_and_taken_away(gallery_page: Page, gallery: PageSite, furniture: Furniture) -> None:
    draft = furniture.draft(gallery, furniture.better)
    gallery_page.goto(f"{gallery.url}/#/drafts/{draft}")
    gallery_page.get_by_label("Tag", exact=True).fill("production")
    gallery_page.get_by_role("button", name="Add").click()
    expect(gallery_page.locator(".below .tag")).to_have_text("production")
    assert gallery.http.get("/v1/drafts/production").json()["id"] == draft
    gallery_page.get_by_role("button", name="Remove the tag production").click()
    expect(gallery_page.locator(".below .tag")).to_have_count(0)
    assert gallery.http.get(f"/v1/drafts/{draft}").json()["tags"] == []


def test_the_fleet_shows_who_has_which_gpu(gallery_page: Page, gallery: PageSite, furniture: Furniture) -> None:
    gallery_page.get_by_role("link", name="Fleet").click()
    leased = gallery_page.locator(".gpu.is-leased")
    expect(leased).to_have_count(1)
    expect(leased).to_contain_text(furniture.running)
    expect(leased).to_contain_text("for train")
    expect(gallery_page.locator("[data-worker]")).to_have_count(2)
    leased.get_by_role("link", name=furniture.running).click()
    expect(gallery_page.get_by_role("heading", level=1, name="slow one")).to_be_visible()
