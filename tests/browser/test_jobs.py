"""From the form to the curve: a job is submitted, watched, read, cancelled and done again, all from the page."""

import re

from playwright.sync_api import Page, Route, expect

from tests.support.page_site import PROMPTS, PageSite

ID = re.compile(r"job_[0-9a-z]+")


def fill_form(page: Page, name: str, metadata: dict[str, str]) -> None:
    """Choose the small preset, upload a dataset, and say how the stages go."""
    page.get_by_role("link", name="Submit a job").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Preset").select_option("tiny")
    page.get_by_label("or upload one").set_input_files(
        {"name": f"{name}.jsonl", "mimeType": "text/plain", "buffer": PROMPTS}
    )
    expect(page.get_by_text(re.compile("^Uploaded .* rows"))).to_be_visible()
    for key, value in metadata.items():
        page.get_by_label("New key").fill(key)
        page.get_by_role("button", name="Add").click()
        page.get_by_label(f"Value of {key}").fill(value)


def plan_and_submit(page: Page) -> str:
    """See the plan, then submit; returns the job's id."""
    submit = page.get_by_role("button", name="Submit", exact=True)
    expect(submit).to_be_disabled()
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_text("The job can be submitted.")).to_be_visible()
    submit.click()
    page.wait_for_url(re.compile(r"#/jobs/job_"))
    found = ID.search(page.url)
    assert found
    return found.group()


def test_a_job_is_submitted_and_watched_until_its_curve_can_be_read(page: Page, site: PageSite) -> None:
    fill_form(page, "from the page", {"steps": "40", "step_s": "0.1", "quality": "0.9"})
    job_id = plan_and_submit(page)
    expect(page.get_by_role("heading", level=1, name="from the page")).to_be_visible()
    train = page.locator("[data-stage=train]")
    expect(train).to_have_attribute("data-status", "running")
    expect(page.get_by_text(re.compile(r"tokens/s"))).to_be_visible()
    expect(train).to_contain_text(re.compile(r"\d+ of 40 steps"))
    expect(train).to_have_attribute("data-status", "succeeded")
    expect(page.get_by_test_id("percent")).to_have_text("100 %")
    assert site.job(job_id)["status"] == "succeeded"

    page.get_by_text("Loss as a table").click()
    rows = page.get_by_role("region", name="Loss", exact=True).locator("tbody tr").all_inner_texts()
    losses = [float(row.split("\t")[1]) for row in rows if row.split("\t")[1]]
    assert len(rows) == 40
    assert losses[0] > losses[-1] > 0
    assert losses[-1] < 3
    page.get_by_text("Acceptance by position as a table").click()
    heads = page.get_by_role("region", name="Acceptance by position", exact=True).locator("th").all_inner_texts()
    assert heads == ["step", "1", "1, held out", "2", "2, held out", "3", "3, held out"]
    assert drawn_pixels(page) > 500


def drawn_pixels(page: Page) -> int:
    """Pixels of the first chart that are not empty."""
    return int(
        page.locator("canvas").first.evaluate(
            """canvas => {
                const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                return pixels.filter((value, i) => i % 4 === 3 && value > 0).length;
            }"""
        )
    )


def test_a_job_is_paused_resumed_cancelled_and_done_again(page: Page, site: PageSite) -> None:
    job_id = site.submit("stopped and started", metadata={"steps": "4000", "step_s": "0.2"})
    page.get_by_role("link", name="stopped and started").click()
    expect(page.locator("[data-stage=train]")).to_have_attribute("data-status", "running")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("[data-stage=train]")).to_have_attribute("data-status", "running")

    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Keep it as it is").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert site.job(job_id)["status"] == "running"
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".heading .status")).to_have_text("cancelled")
    assert site.job(job_id)["status"] == "cancelled"

    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_text(f"again of {job_id}")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".heading .status")).to_have_text("cancelled")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete the job").click()
    expect(page.get_by_role("heading", level=1, name="Jobs")).to_be_visible()
    expect(page.locator(f"[data-job={job_id}]")).to_be_visible()
    assert len(site.http.get("/v1/jobs", params={"name": "stopped and started"}).json()["data"]) == 1


def test_what_stands_against_a_job_is_said_at_its_field_before_anything_is_submitted(
    page: Page, site: PageSite
) -> None:
    fill_form(page, "refused", {})
    page.get_by_label("Learning rate").fill("7")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator(".field.is-wrong")).to_contain_text("less than or equal to 1")
    expect(page.get_by_role("button", name="Submit", exact=True)).to_be_disabled()
    page.get_by_role("textbox", name="Document").fill("{ not json")
    expect(page.get_by_text("This is not JSON")).to_be_visible()
    expect(page.get_by_role("button", name="Plan", exact=True)).to_be_disabled()
    assert site.http.get("/v1/jobs", params={"name": "refused"}).json()["data"] == []


def test_logs_follow_into_later_stages(page: Page, site: PageSite) -> None:
    job_id = site.submit("writes", metadata={"steps": "12"})
    page.goto(f"{site.url}/#/jobs/{job_id}/logs")
    log = page.locator(".log")
    expect(log).to_contain_text("prepare begins")
    expect(log).to_contain_text("step 12: loss")
    expect(log).to_contain_text("evaluate is done")
    expect(page.get_by_text("The job has ended.")).to_be_visible()
    page.get_by_label("Stage").select_option("train")
    expect(log).to_contain_text("step 12: loss")
    expect(log).not_to_contain_text("prepare begins")


def test_events_say_what_happened_and_files_can_be_downloaded(page: Page, site: PageSite) -> None:
    job_id = site.submit("leaves files", metadata={"steps": "8"})
    site.wait_for(job_id, "succeeded")
    page.goto(f"{site.url}/#/jobs/{job_id}/events")
    expect(page.locator(".event.is-warning")).to_contain_text("the loss stands still")
    expect(page.locator(".event.is-metric")).to_have_count(0)
    page.get_by_label("Without metrics").uncheck()
    expect(page.locator(".event.is-metric").first).to_contain_text("loss")
    page.get_by_role("link", name="Artifacts").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="draft/model.safetensors").first.click()
    assert download.value.path().read_text() == "weights"
    page.get_by_role("link", name="Document").click()
    expect(page.locator("pre.code")).to_contain_text('"preset": "tiny"')
    page.get_by_role("link", name="Lineage").click()
    expect(page.get_by_text("verified")).to_be_visible()


def test_jobs_are_filtered_by_what_the_address_says(page: Page, site: PageSite) -> None:
    job_id = site.submit("marked", metadata={"prepare": "refuse", "team": "kernels"})
    site.wait_for(job_id, "failed")
    page.get_by_label("Metadata").fill("team=kernels")
    page.get_by_label("Metadata").press("Enter")
    expect(page.locator(".job-row")).to_have_count(1)
    assert page.locator(".job-row").get_attribute("data-job") == job_id
    page.get_by_label("Status").select_option("succeeded")
    expect(page.get_by_text("No job matches.")).to_be_visible()
    page.get_by_role("link", name="Clear").click()
    expect(page.locator(f"[data-job={job_id}]")).to_be_visible()


def test_what_is_written_while_a_dataset_is_uploaded_stays(page: Page, site: PageSite) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/v1/datasets?*name=*", hold)
    page.get_by_role("link", name="Submit a job").click()
    upload = {"name": "slow.jsonl", "mimeType": "text/plain", "buffer": PROMPTS}
    page.get_by_label("or upload one").set_input_files(upload)
    page.get_by_label("Learning rate").fill("0.5")
    document = page.get_by_role("textbox", name="Document")
    expect(document).to_have_value(re.compile('"lr": 0.5'))
    held[0].continue_()
    expect(document).to_have_value(re.compile('"dataset": "ds_'))
    expect(document).to_have_value(re.compile('"lr": 0.5'))
