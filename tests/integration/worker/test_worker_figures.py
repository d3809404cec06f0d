"""A worker that takes one job and ends: its `/metrics`, its log as JSON, what it adds to the service's figures."""

import json
import subprocess

import httpx
import pytest
from prometheus_client import generate_latest

from services.gateway.metrics import service_registry
from services.worker.main import BAD_INPUT
from shared.schemas.job import JobStatus
from tests.support.gateway_process import free_port
from tests.support.stage_runs import prompts
from tests.support.wait import wait_until
from tests.support.worker_site import GENERATE, LIGHT, Site

WAIT_S = 90.0
ENDS_S = 90.0


@pytest.fixture(scope="module")
def site(shared_site: Site) -> Site:
    return shared_site


def burst(site: Site, package: str = LIGHT, **changes: str) -> "subprocess.Popen[bytes]":
    return site.start_worker(package, EYRIE_WORKER_BURST="1", **changes)


def sample(text: str, name: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return float(line.rpartition(" ")[2])


def test_a_burst_worker_ends_when_nothing_waits(site: Site) -> None:
    assert burst(site).wait(ENDS_S) == 0


def test_a_burst_worker_takes_one_job_and_leaves_the_next_one_in_line(site: Site) -> None:
    port, go_on = free_port(), site.folder / "go-on"
    first = site.submit(prompts(4), metadata={"train": f"hold {go_on}"})
    second = site.submit(prompts(4), train={"seed": 7})
    worker = burst(site, GENERATE, EYRIE_WORKER_METRICS_PORT=str(port), EYRIE_LOG_FORMAT="json", gpus="fake-0")
    wait_until(lambda: list(site.folder.glob("go-on.reached.*")), WAIT_S, what="the job trains")
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert sample(text, "eyrie_worker_busy ") == 1
    assert sample(text, "eyrie_worker_messages_total") == 1
    assert sample(text, "eyrie_worker_beat_age_seconds") < WAIT_S
    assert sample(text, 'eyrie_worker_free_bytes{folder="store"}') > 0
    assert sample(text, "process_resident_memory_bytes") > 0
    go_on.touch()
    site.wait_for(first, JobStatus.SUCCEEDED)
    assert worker.wait(ENDS_S) == 0
    assert site.jobs.get(second).status == JobStatus.QUEUED
    _check_log(site, first)
    _check_figures(site)
    assert burst(site, GENERATE).wait(ENDS_S) == 0
    site.wait_for(second, JobStatus.SUCCEEDED)


def _check_log(site: Site, job_id: str) -> None:
    lines = [json.loads(line) for line in (site.folder / "workers.log").read_text().splitlines() if line[0] == "{"]
    assert {line["service"] for line in lines} == {"worker"}
    told = [(line.get("stage"), line["attempt"]) for line in lines if line.get("job") == job_id]
    assert told.count(("train", 1)) == 2, "that it starts, and that it is done"
    assert told[-1] == (None, 1)


def _check_figures(site: Site) -> None:
    text = generate_latest(service_registry(site.jobs, site.queue)).decode()
    assert sample(text, 'eyrie_jobs_ended_total{reason="",status="succeeded"}') == 1
    assert sample(text, 'eyrie_attempts_ended_total{reason=""}') == 1
    assert sample(text, 'eyrie_stage_seconds_count{stage="generate"}') == 1
    assert sample(text, 'eyrie_samples_total{stage="generate"}') == 4
    assert sample(text, 'eyrie_tokens_total{kind="answer",stage="generate"}') > 0
    answered = 'eyrie_verifier_request_seconds_count{outcome="ok",request="chat"}'
    assert sample(text, answered) == 4, "one request a row"


def test_a_metrics_port_that_is_taken_ends_the_worker_with_a_sentence(site: Site) -> None:
    port = site.stub.url.rpartition(":")[2]
    assert burst(site, EYRIE_WORKER_METRICS_PORT=port).wait(ENDS_S) == BAD_INPUT
    assert f"EYRIE_WORKER_METRICS_PORT: cannot listen on 127.0.0.1:{port}" in (site.folder / "workers.log").read_text()
