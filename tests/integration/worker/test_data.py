"""The data stages on real workers against a scripted verifier: nothing is generated twice, whoever dies."""

import os
import random
import signal
from collections import Counter

import psutil
import pytest

from shared.errors import StatusReason
from shared.schemas.job import JobStatus, Stage
from tests.support.stage_runs import prompts, read_jsonl
from tests.support.wait import wait_until
from tests.support.worker_site import DATA, GENERATE, LIGHT, assert_whole
from tools.embedded_redis import start_redis

ROWS = 12
ONE_BY_ONE = {"data": {"concurrency": 1}}


def asked(site):
    """How often each prompt was answered."""
    return Counter(seen.prompt for seen in site.stub.answered if seen.path == "/v1/chat/completions")


def wait_answers(site, count):
    wait_until(lambda: asked(site).total() >= count, 60, what=f"{count} answers")


def rows(site, record):
    folder = site.store.path(site.manifest(record, Stage.CAPTURE).root)
    return read_jsonl(folder / "dataset" / "rows.jsonl")


def test_prompts_become_rows_with_states_and_a_vocabulary(site):
    site.start_worker(DATA)
    record = site.wait_for(site.submit(prompts(ROWS)), JobStatus.SUCCEEDED)
    assert_whole(site, record)
    summaries = {stage.name: stage.summary for stage in record.stages}
    assert summaries[Stage.PREPARE]["kept"] == ROWS
    assert summaries[Stage.GENERATE]["with_states"] == ROWS
    assert summaries[Stage.CAPTURE]["kept"] == len(rows(site, record)) == ROWS
    assert summaries[Stage.VOCAB]["draft_vocab_size"] == 128
    assert set(asked(site).values()) == {1}
    names = {"speculators", "torch", "python"} & set(site.manifest(record, Stage.VOCAB).versions)
    assert "torch" in names


def test_existing_answers_are_kept_and_their_states_come_by_prefill(site):
    site.start_worker(DATA)
    given = [
        {"messages": [{"role": "user", "content": f"q-{n}"}, {"role": "assistant", "content": f"a-{n} yes"}]}
        for n in range(ROWS)
    ]
    record = site.wait_for(site.submit(given, data={"generate": False}), JobStatus.SUCCEEDED)
    assert asked(site).total() == 0
    assert len(site.stub.prefills()) == ROWS
    assert record.stage(Stage.CAPTURE).summary["prefill"] == ROWS


def test_a_worker_that_is_told_to_stop_hands_over_and_no_row_is_made_twice(site):
    site.stub.delay_s = 0.2
    first = site.start_worker(GENERATE)
    job_id = site.submit(prompts(ROWS), **ONE_BY_ONE)
    wait_answers(site, 4)
    first.send_signal(signal.SIGTERM)
    first.wait(30)
    record = site.jobs.get(job_id)
    assert (record.status, record.attempt, record.token) == (JobStatus.RUNNING, 2, None)
    assert (record.attempts[0].reason, record.retries) == ("handed_over", {})
    assert site.processes() == []
    kept = asked(site).total()
    site.start_worker(GENERATE)
    record = site.wait_for(job_id, JobStatus.SUCCEEDED)
    summary = record.stage(Stage.GENERATE).summary
    assert summary["rows"] == ROWS
    assert summary["taken_over"] >= kept - 1  # the one under way may have been answered in vain
    assert asked(site).total() <= ROWS + 1
    assert record.stage(Stage.GENERATE).attempt == 2
    assert site.half_made() == []


def test_after_a_kill_another_worker_goes_on_from_the_rows_that_were_made(site):
    site.stub.delay_s = 0.2
    first = site.start_worker(GENERATE)
    job_id = site.submit(prompts(ROWS), **ONE_BY_ONE)
    wait_answers(site, 4)
    for process in [*psutil.Process(first.pid).children(recursive=True), psutil.Process(first.pid)]:
        os.kill(process.pid, signal.SIGKILL)
    first.wait(30)
    assert site.jobs.get(job_id).status == JobStatus.RUNNING
    site.replace_lost_attempt(job_id)
    site.start_worker(GENERATE)
    record = site.wait_for(job_id, JobStatus.SUCCEEDED)
    assert record.attempt == 2
    assert record.stage(Stage.GENERATE).summary["taken_over"] >= 3
    assert asked(site).total() <= ROWS + 1
    assert site.processes() == []
    assert site.half_made() == []


def test_children_that_outlive_a_killed_worker_are_ended_by_the_next_run(site):
    go_on = site.folder / "go-on"
    first = site.start_worker(LIGHT)
    job_id = site.submit(metadata={"train": f"family {go_on}"})
    wait_until(lambda: list(site.folder.glob("go-on.reached.*")), 60, what="training holds")
    child = wait_until(lambda: [p for p in site.processes() if "-S" in p.cmdline()], what="its child runs")[0]
    stages = [process for process in site.processes() if process.pid != child.pid]
    for process in [*psutil.Process(first.pid).children(recursive=False), *stages, psutil.Process(first.pid)]:
        os.kill(process.pid, signal.SIGKILL)
    first.wait(30)
    site.replace_lost_attempt(job_id)
    assert child.is_running()
    go_on.touch()
    site.start_worker(LIGHT)
    site.wait_for(job_id, JobStatus.SUCCEEDED)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_verifier_that_goes_away_and_comes_back_costs_an_attempt_and_no_row(site):
    site.stub.gone_after = 5
    site.start_worker(GENERATE)
    job_id = site.submit(prompts(ROWS), data={"concurrency": 12})
    record = wait_until(lambda: site.jobs.get(job_id) if site.jobs.get(job_id).attempt == 2 else None, 60)
    made = asked(site).total()
    site.stub.gone, site.stub.gone_after = False, None
    assert record.retries == {StatusReason.UPSTREAM_VERIFIER: 1}
    assert record.attempts[0].stage == Stage.GENERATE
    record = site.wait_for(job_id, JobStatus.SUCCEEDED)
    assert record.attempts[0].reason == StatusReason.UPSTREAM_VERIFIER
    assert record.stage(Stage.PREPARE).attempt == 1
    assert record.stage(Stage.GENERATE).summary["taken_over"] == made
    assert asked(site).total() == ROWS


def test_a_dataset_without_usable_rows_fails_the_job_by_line(site):
    site.start_worker(GENERATE)
    record = site.wait_for(site.submit(["{", {"prompt": ""}]), JobStatus.FAILED)
    assert record.status_reason == StatusReason.USER_ERROR
    assert record.error.where == "dataset"
    assert "line 1 is not JSON" in record.error.message
    assert site.half_made() == []
    assert site.stub.seen == []


def test_a_cancelled_generation_leaves_no_file_in_the_exchange_folder(site):
    site.stub.delay_s, site.stub.write_delay_s = 0.1, 0.3
    site.start_worker(GENERATE)
    job_id = site.submit(prompts(60), data={"concurrency": 8})
    wait_answers(site, 8)
    site.stop_job(job_id, JobStatus.CANCELLING)
    site.wait_for(job_id, JobStatus.CANCELLED)
    wait_until(lambda: not list(site.exchange.iterdir()), 20, what="the folder is empty")
    answered = len(site.stub.seen)
    assert not site.processes()
    assert answered < 60


@pytest.mark.parametrize("stage_moment", ["in a stage", "between stages"])
def test_a_job_outlives_a_redis_that_is_away_for_some_seconds(site, stage_moment):
    site.stub.delay_s = 0.4
    site.start_worker(GENERATE)
    job_id = site.submit(prompts(ROWS), data={"concurrency": 2})
    wait_answers(site, 2)
    port, folder = site.redis.port, site.folder / "redis"
    site.redis.stop()
    before = 3 if stage_moment == "in a stage" else ROWS
    wait_answers(site, before)
    if stage_moment == "between stages":
        wait_until(lambda: list(site.store.root.glob("stages/generate/*/attempts/*/result.json")), 60, what="it ends")
    site.redis = start_redis(folder, port)
    record = site.wait_for(job_id, JobStatus.SUCCEEDED)
    assert record.attempt == 1
    assert asked(site).total() == ROWS


@pytest.mark.data
def test_a_job_with_a_larger_limit_on_a_shuffled_file_makes_only_what_no_earlier_job_has_made(site):
    site.start_worker(DATA)
    prefill = {"capture": {"mode": "prefill"}}
    first = site.wait_for(site.submit(prompts(ROWS), data={"limit": 5}, **prefill), JobStatus.SUCCEEDED)
    shuffled = random.Random(2).sample(prompts(ROWS), ROWS)
    second = site.wait_for(site.submit(shuffled, data={"limit": 10}, **prefill), JobStatus.SUCCEEDED)
    known = {row["row_id"] for row in rows(site, first)}
    wanted = {row["row_id"] for row in rows(site, second)}
    assert len(wanted) == 10
    assert second.stage(Stage.GENERATE).key != first.stage(Stage.GENERATE).key
    assert second.stage(Stage.GENERATE).summary["taken_over"] == len(known & wanted) > 0
    assert asked(site).total() == len(site.stub.prefills()) == len(known | wanted)
    assert set(asked(site).values()) == {1}
