"""The fleet over HTTP, with a real worker: who works, who has which GPU, and which verifiers run."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from shared.schemas.job import JobStatus
from tests.support.gateway_process import gateway_process
from tests.support.stage_runs import prompts
from tests.support.wait import wait_until
from tests.support.worker_site import Site

WAIT_S = 30.0


@pytest.fixture(scope="module")
def site(shared_site: Site) -> Site:
    return shared_site


@pytest.fixture(scope="module")
def http(site: Site) -> Iterator[httpx.Client]:
    folder = site.folder / "gateway"
    folder.mkdir()
    settings = {"store_root": str(site.store.root), "exchange_root": str(site.exchange), "verifier_url": site.stub.url}
    with gateway_process(folder, site.redis.url, **settings) as gateway, httpx.Client(base_url=gateway.url) as client:
        yield client


def entries(http: httpx.Client, what: str) -> list[dict[str, Any]]:
    answer = http.get(f"/v1/{what}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "list"
    for entry in answer.json()["data"]:
        assert entry["object"] == what.removesuffix("s")
        assert http.get(f"/v1/{what}/{entry['id']}").json()["id"] == entry["id"]
    return answer.json()["data"]


def managed(http: httpx.Client) -> list[dict[str, Any]]:
    return [one for one in entries(http, "verifiers") if one["kind"] == "managed"]


def test_the_fleet_is_shown_while_a_job_starts_a_verifier_trains_and_ends(site: Site, http: httpx.Client) -> None:
    assert (entries(http, "workers"), entries(http, "gpus"), managed(http)) == ([], [], [])
    loaded, go_on = site.folder / "loaded", site.folder / "go-on"
    worker = site.start_worker(
        gpus="fake-0,fake-1",
        EYRIE_STOP_GRACE_S="1",
        EYRIE_VERIFIER_MODULE="tests.support.light_verifier",
        EYRIE_LIGHT_VERIFIER_HOLD=str(loaded),
    )
    job = {
        "verifier": {"endpoint": None, "managed": {"tensor_parallel_size": 2}},
        "train": {"gpus": 1},
        "evaluate": {"gpus": 1},
    }
    measured = site.folder / "measured"
    job_id = site.submit(prompts(4), **job, metadata={"train": f"hold {go_on}", "evaluate": f"serve {measured}"})

    def loads() -> dict[str, Any] | None:
        return next((one for one in managed(http) if one["loaded"]), None)

    verifier = wait_until(loads, WAIT_S, what="the verifier says how far it has loaded")
    assert (verifier["status"], verifier["loaded"], verifier["url"]) == ("loading", 0.25, None)
    assert "16 of 64" in verifier["status_message"]
    assert (verifier["job_id"], verifier["gpus"]) == (job_id, ["fake-0", "fake-1"])
    assert (verifier["num_layers"], verifier["hidden_size"], verifier["vocab_size"]) == (4, 16, 512)
    assert verifier["max_model_len"] == 4096
    capture = verifier["capture"]
    assert (capture["enabled"], capture["layer_ids"]) == (True, [1, 2, 3, 4])
    assert capture["exchange"] == str(site.exchange)
    (shown,) = entries(http, "workers")
    assert (shown["job_id"], shown["pid"], shown["id"]) == (job_id, worker.pid, verifier["worker"])
    assert [gpu["id"] for gpu in shown["gpus"]] == ["fake-0", "fake-1"]
    gpus = entries(http, "gpus")
    assert [(gpu["status"], gpu["holder"]["stage"], gpu["workers"]) for gpu in gpus] == [
        ("leased", "verifier", [shown["id"]])
    ] * 2
    assert "token" not in gpus[0]["holder"]
    loaded.touch()
    wait_until(lambda: list(site.folder.glob("go-on.reached.*")), WAIT_S, what="the job trains")
    assert managed(http) == [], "training has its GPUs"
    (shown,) = entries(http, "workers")
    assert (shown["job_id"], shown["stage"]) == (job_id, "train")
    assert sorted(gpu["status"] for gpu in entries(http, "gpus")) == ["free", "leased"]
    go_on.touch()
    (verifier,) = wait_until(lambda: managed(http), WAIT_S, what="the stage serves a verifier with the draft")
    told = [verifier[name] for name in ("job_id", "stage", "draft", "status", "worker")]
    assert told == [job_id, "evaluate", "trained", "loading", shown["id"]]
    assert verifier["gpus"] == [gpu["id"] for gpu in entries(http, "gpus") if gpu["status"] == "leased"]
    measured.touch()
    site.wait_for(job_id, JobStatus.SUCCEEDED)
    wait_until(lambda: entries(http, "workers")[0]["job_id"] is None, WAIT_S, what="the worker is idle")
    assert managed(http) == [], "the stage has ended without a word"
    assert [(gpu["status"], gpu["holder"]) for gpu in entries(http, "gpus")] == [("free", None)] * 2
    os.kill(worker.pid, signal.SIGTERM)
    worker.wait(20)
    assert (entries(http, "workers"), entries(http, "gpus")) == ([], [])


def test_the_fleets_own_verifier_is_asked_what_it_serves(site: Site, http: httpx.Client) -> None:
    (verifier,) = entries(http, "verifiers")
    assert (verifier["id"], verifier["kind"], verifier["status"]) == ("external", "external", "ready")
    assert (verifier["url"], verifier["model"]) == (site.stub.url, "tiny-verifier")
    assert verifier["capture"] is None, "it has left no note"
    site.exchange.joinpath("captures-tiny-verifier.json").write_text('{"layer_ids": [1, 2, 3, 4]}')
    capture = wait_until(lambda: entries(http, "verifiers")[0]["capture"], WAIT_S, what="the note is read")
    assert capture["layer_ids"] == [1, 2, 3, 4]
    site.exchange.joinpath("captures-tiny-verifier.json").unlink()
    site.stub.gone = True

    def gone() -> dict[str, Any] | None:
        return next((one for one in entries(http, "verifiers") if one["status"] == "unreachable"), None)

    assert wait_until(gone, WAIT_S, what="it does not answer")["status_message"]
    for what in ("workers/x", "gpus/x", "verifiers/x"):
        answer = http.get(f"/v1/{what}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert http.get("/v1/gpus", params={"after": "x"}).status_code == 422
