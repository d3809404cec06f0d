"""Retention removes what nothing refers to, and nothing else: every job's and draft's lineage still verifies."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from shared.retention import DAY_S, Retention
from shared.schemas.job import JobStatus, Stage, StageStatus
from shared.schemas.manifest import Manifest
from shared.schemas.registry import DraftRecord
from shared.stage_keys import DAMAGED_PREFIX, stage_lease
from tests.support.gateway_process import ROOT
from tests.support.stage_store import StageStore

KEEP_DAYS = 30


@pytest.fixture
def world(redis_handle, tmp_path):
    with Redis.from_url(redis_handle.url, decode_responses=True) as redis:
        redis.flushall()
        yield StageStore(redis, tmp_path)


def apply(world, days=KEEP_DAYS):
    return Retention(world.jobs, days * DAY_S).apply()


def look(world, days=KEEP_DAYS):
    return Retention(world.jobs, days * DAY_S).look()


JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "variants": st.text("ab", min_size=len(Stage), max_size=len(Stage)),
            "done": st.integers(0, len(Stage)),
            "deleted": st.booleans(),
            "draft_deleted": st.booleans(),
        }
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs=JOBS, old=st.booleans())
def test_whatever_is_removed_every_lineage_still_verifies(redis_handle, jobs, old):
    with Redis.from_url(redis_handle.url, decode_responses=True) as redis, tempfile.TemporaryDirectory() as folder:
        redis.flushall()
        world = StageStore(redis, Path(folder))
        records = [world.job(job["variants"], job["done"]) for job in jobs]
        for job, record in zip(jobs, records, strict=True):
            if job["deleted"]:
                world.delete_job(record.id)
            publish = record.stage(Stage.PUBLISH).key
            if job["draft_deleted"] and publish:
                world.store.delete(f"drafts/draft_{publish[:20]}.json")
        if old and world.store.exists("stages"):
            world.age(KEEP_DAYS + 1)
        dry, before = look(world), world.manifests()
        assert world.manifests() == before, "a dry run changes nothing"
        report = apply(world)
        assert [item.key for item in report.items] == [item.key for item in dry.items]
        needed = set()
        for job, record in zip(jobs, records, strict=True):
            if not job["deleted"]:
                needed |= {stage.manifest for stage in record.stages if stage.manifest}
        for name in world.store.list("drafts"):
            needed.add(DraftRecord.model_validate_json(world.store.read(f"drafts/{name}")).manifest)
        for key in needed:
            world.verify(key)
        if not old:
            assert world.manifests() == before
        assert apply(world).items == [], "nothing is left to remove"


def test_what_nothing_refers_to_is_removed_when_it_is_old_enough(world):
    kept, gone = world.job("aaaaaaa", 5), world.job("aabbbbb", 5)
    world.delete_job(gone.id)
    assert apply(world).items == []
    world.age(KEEP_DAYS + 1)
    report = apply(world)
    assert sorted({item.kind for item in report.items}) == ["stage"]
    assert report.bytes > 0
    left = {manifest.key for manifest in world.manifests().values()}
    assert left == {stage.key for stage in kept.stages if stage.key}
    assert list(world.store.list("staging")) == []


def test_what_a_draft_was_made_from_stays_although_it_was_made_anew_or_is_damaged(world):
    record = world.job("aaaaaaa")
    prefixes = [f"stages/{stage.name}/{stage.key}" for stage in record.stages]
    capture = f"{prefixes[2]}/manifest.json"
    manifest = Manifest.model_validate_json(world.store.read(capture))
    anew = manifest.model_copy(update={"files": [manifest.files[0].model_copy(update={"sha256": "0" * 64})]})
    world.store.write(capture, anew.model_dump_json().encode())  # other bytes than its users have seen
    world.store.move(f"{prefixes[4]}/manifest.json", f"{prefixes[4]}/{DAMAGED_PREFIX}run_x.json")
    world.delete_job(record.id)
    world.age(KEEP_DAYS + 1)
    assert apply(world).items == []
    assert all(world.store.exists(prefix) for prefix in prefixes)


def test_a_stage_that_is_referred_to_while_it_is_removed_is_put_back(world, monkeypatch):
    gone = world.job("aaaaaaa", 3)
    manifests = world.manifests()
    world.delete_job(gone.id)
    world.age(KEEP_DAYS + 1)
    mark = Retention._mark
    late = []

    def mark_and_refer(self, prefix):
        marked = mark(self, prefix)
        assert not world.store.exists(f"{prefix}/manifest.json"), "nobody finds it any more"
        if not late:  # a run had found it just before
            late.append(world.job("aaaaaaa", 0, JobStatus.CANCELLING))
            stage, key = prefix.split("/")[1:]

            def change(record):
                record.stage(Stage(stage)).key, record.stage(Stage(stage)).status = key, StageStatus.REUSED

            world.jobs.update(late[0].id, change)
        return marked

    monkeypatch.setattr(Retention, "_mark", mark_and_refer)
    report = apply(world)
    used = next(stage for stage in world.jobs.get(late[0].id).stages if stage.key)
    world.verify(f"stages/{used.name}/{used.key}/manifest.json")
    assert len(report.items) + len(world.manifests()) == len(manifests)
    assert any("refers to it by now" in reason for reason in report.kept)


def test_a_stage_that_a_run_computes_is_left_alone(world):
    gone = world.job("aaaaaaa", 1)
    world.delete_job(gone.id)
    world.age(KEEP_DAYS + 1)
    (manifest,) = world.manifests().values()
    lease = stage_lease(f"stages/prepare/{manifest.key}")
    assert world.jobs.acquire_keys([lease], "run", 60)
    report = apply(world)
    assert report.items == []
    assert world.store.exists(f"{manifest.root}/result.txt")
    world.jobs.release_keys([lease], "run")
    assert len(apply(world).items) == 1


def test_a_stage_that_a_run_has_computed_since_a_slow_clean_up_marked_it_stays(world, monkeypatch):
    gone = world.job("aaaaaaa", 2)
    world.delete_job(gone.id)
    world.age(KEEP_DAYS + 1)
    delete, made = world.store.delete, []

    def delete_slowly(key):
        """The leases lapse while the first folder is removed, and a run computes what it did not find."""
        delete(key)
        if not made and key.startswith("staging/"):
            for lease in world.jobs.redis.scan_iter("eyrie:stage:*"):
                world.jobs.redis.delete(lease)
            made.append(world.job("aaaaaaa", 2))

    monkeypatch.setattr(world.store, "delete", delete_slowly)
    apply(world)
    for stage in made[0].stages[:2]:
        world.verify(stage.manifest)


def test_a_stage_whose_lease_has_lapsed_is_put_back(world, monkeypatch):
    gone = world.job("aaaaaaa", 1)
    world.delete_job(gone.id)
    world.age(KEEP_DAYS + 1)
    before = world.manifests()
    mark = Retention._mark

    def mark_and_lapse(self, prefix):
        return mark(self, prefix) and bool(world.jobs.redis.delete(f"eyrie:{stage_lease(prefix)}"))

    monkeypatch.setattr(Retention, "_mark", mark_and_lapse)
    report = apply(world)
    assert (report.items, world.manifests()) == ([], before)
    assert "took too long" in report.kept[0]
    monkeypatch.undo()
    world.age(KEEP_DAYS + 1)
    assert len(apply(world).items) == 1


def test_attempts_of_dead_runs_go_and_what_a_job_can_go_on_with_stays(world):
    done = world.job("aaaaaaa", 1)
    paused, failed = world.job("bbbbbbb", 0, JobStatus.PAUSING), world.job("ccccccc", 0, JobStatus.FAILED)
    finished = done.stage(Stage.PREPARE).key
    for record, key in ((done, finished), (paused, "b" * 32), (failed, "c" * 32)):
        world.store.write(f"stages/prepare/{key}/attempts/run_dead/work/rows", b"rows")
        if record is not done:
            world.jobs.redis.hset(
                f"eyrie:job:{record.id}",
                "record",
                world.jobs.get(record.id).model_copy(update={"stages": _with_key(record, key)}).model_dump_json(),
            )
    removed = {item.key.split("/")[2] for item in apply(world).items}
    assert removed == {finished}, "another attempt has finished it"
    world.age(KEEP_DAYS + 1)
    removed = {item.key.split("/")[2] for item in apply(world).items}
    assert removed == {"c" * 32}
    assert world.store.exists(f"stages/prepare/{'b' * 32}/attempts/run_dead/work/rows")
    assert world.store.exists(world.manifests().popitem()[1].root)


def _with_key(record, key):
    stages = [stage.model_copy() for stage in record.stages]
    stages[0].key = key
    return stages


def test_leftovers_of_uploads_logs_and_events_of_gone_jobs_go(world):
    live = world.job("aaaaaaa", 0)
    for key in ("staging/half", "jobs/job_00000000000000000000/logs/prepare-1.log", "datasets/ds_half/files/0.jsonl"):
        world.store.write(key, b"x")
    world.jobs.append_event("job_00000000000000000000", "job", {})
    assert {item.kind for item in apply(world).items} == {"events"}
    for key in ("staging", "jobs", "datasets"):
        world.age(KEEP_DAYS + 1, key)
    assert {item.kind for item in apply(world).items} == {"staging", "job_folder", "dataset_folder"}
    assert world.store.exists(f"jobs/{live.id}/job.json")
    assert world.jobs.events(live.id)


def test_while_records_are_being_rebuilt_no_stage_is_judged(world):
    world.job("aaaaaaa", 3)
    world.age(KEEP_DAYS + 1)
    world.jobs.redis.flushall()
    report = apply(world)
    assert report.items == []
    assert "being rebuilt" in report.kept[0]
    assert len(world.manifests()) == 3


def test_a_manifest_or_draft_that_cannot_be_read_is_kept_with_its_stage(world):
    gone = world.job("aaaaaaa", 1)
    world.delete_job(gone.id)
    (manifest,) = world.manifests().values()
    world.store.write(f"stages/prepare/{manifest.key}/manifest.json", b"{")
    world.age(KEEP_DAYS + 1)
    assert apply(world).items == []
    assert world.store.exists(f"{manifest.root}/result.txt")


HALF = "datasets/ds_half"


def leave_half_an_upload(store):
    """What an upload left that was broken off long ago; nothing but retention removes it."""
    store.write(f"{HALF}/files/0.jsonl", b"xyz")
    for path in [*store.path(HALF).rglob("*"), store.path(HALF)]:
        os.utime(path, (0, 0))


def test_over_rest_a_dry_run_is_the_default_and_one_removes_at_a_time(http: httpx.Client, jobs, store):
    leave_half_an_upload(store)
    for body in (None, {}, {"apply": False}):
        report = http.post("/v1/gc", json=body).json()
        assert (report["applied"], [item["key"] for item in report["items"]]) == (False, [HALF])
        assert report["bytes"] == 3
    jobs.redis.set("eyrie:lease:gc", "other")
    answer = http.post("/v1/gc", json={"apply": True})
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    jobs.redis.delete("eyrie:lease:gc")
    assert http.post("/v1/gc", json={"apply": "perhaps"}).status_code == 422
    assert http.post("/v1/gc", json={"retention_days": -1}).status_code == 422
    report = http.post("/v1/gc", json={"apply": True, "retention_days": 1}).json()
    assert (report["applied"], report["retention_days"], len(report["items"])) == (True, 1, 1)
    assert not store.exists(HALF)


def test_the_command_line_lists_and_removes(gateway, store):
    leave_half_an_upload(store)
    command = [sys.executable, "-m", "services.cli.main", "gc", "--url", gateway.url]
    dry = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert HALF in dry.stdout
    assert "--apply" in dry.stdout
    subprocess.run([*command, "--apply"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not store.exists(HALF)
    after = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "nothing to remove" in after.stdout
