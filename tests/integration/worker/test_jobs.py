"""Jobs on real workers: from the record to a draft, computed once, stopped when asked, and never half made."""

import pytest
from rq import Callback

from services.gateway.registry.drafts import DraftRegistry
from shared.errors import ArtifactStoreError, StatusReason
from shared.job_store import JobNotFound
from shared.schemas.job import JobStatus, Stage, StageStatus
from shared.schemas.registry import DraftRecord
from tests.support.stage_runs import prompts
from tests.support.wait import wait_until
from tests.support.worker_site import assert_whole


def statuses(record):
    return [stage.status for stage in record.stages]


def hold(site, stage, verb="hold"):
    """Metadata that keeps a stage from ending, and the file that lets it go on."""
    file = site.folder / "go-on"
    return {stage: f"{verb} {file}"}, file


def reached(site):
    return sorted(site.folder.glob("go-on.reached.*"))


def wait_reached(site, count=1):
    wait_until(lambda: len(reached(site)) == count, 60, what=f"{count} runs hold")


def test_a_job_ends_with_a_registered_draft_and_an_equal_one_reuses_every_stage(site):
    site.start_worker()
    record = site.wait_for(site.submit(), JobStatus.SUCCEEDED)
    assert statuses(record) == [StageStatus.SUCCEEDED] * len(Stage)
    assert_whole(site, record)
    draft = DraftRecord.model_validate_json(site.store.read(f"drafts/{record.draft}.json"))
    assert site.store.exists(f"{draft.root}/model.safetensors")
    assert draft.job_id == record.id
    assert record.started_at <= record.finished_at
    assert all(stage.seconds is not None for stage in record.stages)
    equal = site.wait_for(site.submit(name="another name"), JobStatus.SUCCEEDED)
    assert statuses(equal) == [StageStatus.REUSED] * len(Stage)
    assert equal.draft == record.draft
    assert site.half_made() == []
    DraftRegistry(site.store).delete(draft, lambda: None)
    assert not site.store.exists(f"drafts/{draft.id}.json")
    again = site.wait_for(site.submit(name="asked for again"), JobStatus.SUCCEEDED)
    assert again.draft == draft.id
    assert DraftRegistry(site.store).find(draft.id) == draft.model_copy(update={"job_id": again.id})


@pytest.mark.data
def test_five_equal_jobs_at_once_are_computed_once(site):
    metadata, go_on = hold(site, "generate")
    for _ in range(5):
        site.start_worker()
    ids = [site.submit(metadata=metadata) for _ in range(5)]
    wait_reached(site)
    wait_until(lambda: all(site.jobs.get(i).status == JobStatus.RUNNING for i in ids), 60, what="all run")
    go_on.touch()
    records = [site.wait_for(job_id, JobStatus.SUCCEEDED) for job_id in ids]
    for stage in Stage:
        assert sorted(record.stage(stage).status for record in records) == ["reused"] * 4 + ["succeeded"]
    assert len(reached(site)) == 1
    assert len({record.draft for record in records}) == 1


def test_a_cancelled_job_ends_with_all_its_processes_and_leaves_nothing(site):
    metadata, go_on = hold(site, "generate", "family")
    site.start_worker()
    job_id = site.submit(metadata=metadata)
    wait_reached(site)
    wait_until(lambda: len(site.processes()) >= 2, what="the stage and its child run")
    site.stop_job(job_id, JobStatus.CANCELLING)
    record = site.wait_for(job_id, JobStatus.CANCELLED)
    assert record.status_reason == StatusReason.STOPPED_BY_USER
    assert record.stage(Stage.GENERATE).status == StageStatus.CANCELLED
    assert record.finished_at is not None
    assert site.processes() == []
    go_on.touch()
    after = site.wait_for(site.submit(prompts(3)), JobStatus.SUCCEEDED)  # the worker goes on
    assert after.id != job_id
    assert site.jobs.get(job_id) == record
    assert site.half_made() == []


def test_a_paused_job_goes_on_where_it_stood(site):
    metadata, go_on = hold(site, "generate")
    site.start_worker()
    job_id = site.submit(metadata=metadata)
    wait_reached(site)
    site.stop_job(job_id, JobStatus.PAUSING)
    record = site.wait_for(job_id, JobStatus.PAUSED)
    assert statuses(record)[:2] == [StageStatus.SUCCEEDED, StageStatus.PENDING]
    assert site.processes() == []
    go_on.touch()
    site.stop_job(job_id, JobStatus.QUEUED)
    site.queue.enqueue(job_id, record.attempt)
    done = site.wait_for(job_id, JobStatus.SUCCEEDED)
    assert done.stage(Stage.PREPARE).attempt == 1
    assert done.stage(Stage.GENERATE).attempt == 2


def test_a_users_error_fails_the_job_with_what_where_and_hint_and_leaves_nothing(site):
    site.start_worker()
    record = site.wait_for(site.submit(metadata={"capture": "refuse"}), JobStatus.FAILED)
    assert record.status_reason == StatusReason.USER_ERROR
    error = record.error
    assert (error.message, error.where, error.hint) == ("this cannot work", "line 3", "give another")
    assert record.status_message == "this cannot work"
    assert statuses(record)[2:4] == [StageStatus.FAILED, StageStatus.PENDING]
    assert record.draft is None
    assert site.half_made() == []
    assert not site.store.exists("drafts")


def test_a_full_disk_is_an_error_of_the_store(site):
    site.start_worker()
    record = site.wait_for(site.submit(metadata={"generate": "full"}), JobStatus.FAILED)
    assert record.status_reason == StatusReason.ARTIFACT_STORE
    assert "No space left" in record.error.message


def test_a_stage_that_takes_longer_than_its_limit_is_ended(site):
    metadata, _ = hold(site, "generate", "family")
    site.start_worker()
    record = site.wait_for(site.submit(metadata=metadata, limits={"generate_s": 2}), JobStatus.FAILED)
    assert record.status_reason == StatusReason.TIMEOUT
    assert record.error.hint == "raise limits.generate_s"
    assert site.processes() == []
    assert site.half_made() == []


@pytest.mark.parametrize("extra", ["function", "callback"])
def test_a_message_can_run_nothing_but_a_job(site, extra):
    file = site.folder / "written"
    if extra == "function":
        site.queue.queue.enqueue_call("os.mkdir", args=(str(file),), job_id="foreign")
    else:
        message = site.queue.queue.create_job(
            "services.worker.main.run_job",
            args=("job_that_is_not_there",),
            job_id="foreign",
            on_success=Callback("tests.support.foreign_callback.touch"),
        )
        message.meta["file"] = str(file)
        site.queue.queue.enqueue_job(message)
    site.start_worker()
    site.wait_for(site.submit(), JobStatus.SUCCEEDED)  # one worker: the foreign message was dealt with before
    assert not file.exists()
    with pytest.raises(JobNotFound):
        site.jobs.get("job_that_is_not_there")


def test_a_job_ends_although_the_store_is_full(site, monkeypatch):
    def full(*_):
        raise ArtifactStoreError("the artifact store cannot be used: No space left on device")

    job_id = site.submit()
    monkeypatch.setattr(site.store, "create", full)
    site.stop_job(job_id, JobStatus.CANCELLED)
    assert site.jobs.get(job_id).status == JobStatus.CANCELLED
    assert job_id not in site.jobs.active_ids()


@pytest.mark.data
def test_training_with_nothing_supervised_fails_before_a_gpu_is_leased_or_a_process_started(site):
    site.start_worker()
    rows = '{"split": "train", "first_supervised": 9000}\n{"split": "val", "first_supervised": 4}'
    job_id = site.submit(metadata={"capture": f"leave dataset/rows.jsonl {rows}"})
    record = site.wait_for(job_id, JobStatus.FAILED)
    assert (record.error.reason, record.error.where) == (StatusReason.USER_ERROR, "/train/pack_length")
    assert record.stage(Stage.TRAIN).status == StageStatus.FAILED
    logs = site.store.root / "jobs" / job_id / "logs"
    assert (logs / "capture-1.log").exists()
    assert not (logs / "train-1.log").exists()
    assert site.half_made() == []
