"""Finished outputs that lose files later: made again from what is whole of them, and never used as they are."""

import pytest

from shared.errors import StatusReason
from shared.schemas.job import JobStatus, Stage, StageStatus
from shared.schemas.registry import DraftRecord
from tests.support.stage_runs import prompts
from tests.support.worker_site import DATA, assert_whole

pytestmark = pytest.mark.data


def stored(site, record, stage, path):
    """Where a file of a finished stage lies."""
    return site.store.path(f"{site.manifest(record, stage).root}/{path}")


def test_three_lost_states_of_twenty_cost_three_requests(site):
    site.start_worker(DATA)
    options = {"capture": {"mode": "prefill"}}
    first = site.wait_for(site.submit(prompts(20), **options), JobStatus.SUCCEEDED)
    assert len(site.stub.prefills()) == 20
    for number in (3, 11):
        stored(site, first, Stage.CAPTURE, f"dataset/hidden_states/hs_{number}.safetensors").unlink()
    with stored(site, first, Stage.CAPTURE, "dataset/hidden_states/hs_17.safetensors").open("r+b") as file:
        file.truncate(100)
    again = site.wait_for(site.submit(prompts(20), **options), JobStatus.SUCCEEDED)
    assert len(site.stub.prefills()) == 23
    assert len(site.stub.chats()) == 20
    statuses = {stage: again.stage(stage).status for stage in (Stage.PREPARE, Stage.GENERATE, Stage.CAPTURE)}
    assert list(statuses.values()) == [StageStatus.REUSED, StageStatus.REUSED, StageStatus.SUCCEEDED]
    assert again.stage(Stage.CAPTURE).summary["kept"] == 20
    assert_whole(site, again)
    assert site.half_made() == []


def test_states_that_came_with_the_answers_and_were_lost_cost_a_prefill_each_and_no_answer(site):
    site.start_worker(DATA)
    first = site.wait_for(site.submit(prompts(12)), JobStatus.SUCCEEDED)
    assert (len(site.stub.chats()), len(site.stub.prefills())) == (12, 0)
    states = [entry for entry in site.manifest(first, Stage.GENERATE).files if entry.path.endswith(".safetensors")]
    for entry in states[:3]:
        with stored(site, first, Stage.GENERATE, entry.path).open("r+b") as file:
            file.truncate(100)  # capture's file is the same one, by hard link
    again = site.wait_for(site.submit(prompts(12)), JobStatus.SUCCEEDED)
    assert (len(site.stub.chats()), len(site.stub.prefills())) == (12, 3)
    assert again.stage(Stage.CAPTURE).summary["kept"] == 12
    assert_whole(site, again)


def test_changed_bytes_are_found_before_they_are_used_and_the_stage_is_made_again(site):
    site.start_worker()
    first = site.wait_for(site.submit(), JobStatus.SUCCEEDED)
    report = stored(site, first, Stage.VOCAB, "report.json")
    report.write_bytes(report.read_bytes().replace(b"128", b"129"))  # as long as before
    refused = site.wait_for(site.submit(train={"lr": 0.5}), JobStatus.FAILED)
    assert refused.status_reason == StatusReason.ARTIFACT_STORE
    assert refused.error.where == "vocab/report.json"
    assert "other content" in refused.error.message
    assert refused.stage(Stage.TRAIN).status == StageStatus.FAILED
    again = site.wait_for(site.submit(train={"lr": 0.5}), JobStatus.SUCCEEDED)
    assert again.stage(Stage.CAPTURE).status == StageStatus.REUSED
    assert again.stage(Stage.VOCAB).status == StageStatus.SUCCEEDED
    assert_whole(site, again)


def test_a_draft_that_lost_its_weights_is_published_again_under_its_id_by_one_of_two_equal_jobs(site):
    site.start_worker()
    site.start_worker()
    first = site.wait_for(site.submit(), JobStatus.SUCCEEDED)
    stored(site, first, Stage.PUBLISH, "model.safetensors").unlink()
    ids = [site.submit(), site.submit()]
    again = [site.wait_for(job_id, JobStatus.SUCCEEDED) for job_id in ids]
    assert {record.draft for record in again} == {first.draft}
    assert sorted(record.stage(Stage.PUBLISH).status for record in again) == ["reused", "succeeded"]
    assert {record.stage(Stage.TRAIN).status for record in again} == {StageStatus.REUSED}
    draft = DraftRecord.model_validate_json(site.store.read(f"drafts/{first.draft}.json"))
    assert site.store.exists(f"{draft.root}/model.safetensors")
    assert draft.digest == site.manifest(again[0], Stage.PUBLISH).digest()


def test_a_manifest_and_a_draft_that_cannot_be_read_are_made_again(site):
    site.start_worker()
    first = site.wait_for(site.submit(), JobStatus.SUCCEEDED)
    site.store.write(first.stage(Stage.VOCAB).manifest, b'\xff{"cut o')
    site.store.write(first.stage(Stage.PUBLISH).manifest, b"")
    site.store.write(f"drafts/{first.draft}.json", b"")
    again = site.wait_for(site.submit(), JobStatus.SUCCEEDED)
    assert [s.name for s in again.stages if s.status == StageStatus.SUCCEEDED] == [Stage.VOCAB, Stage.PUBLISH]
    assert_whole(site, again)
    draft = DraftRecord.model_validate_json(site.store.read(f"drafts/{again.draft}.json"))
    assert draft.digest == site.manifest(again, Stage.PUBLISH).digest()
