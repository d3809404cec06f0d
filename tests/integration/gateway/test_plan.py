"""Plans over REST and in the shell: figures and every problem, and nothing is started by asking."""

from pathlib import Path

import httpx
import pytest

from shared.artifact_store import LocalArtifactStore
from shared.fleet import Fleet
from shared.ids import new_id
from shared.job_store import JobStore
from shared.schemas.fleet import GpuInfo, WorkerRecord
from shared.schemas.job import JobRecord, Progress, StageStatus, now
from tests.integration.gateway.test_cli import eyrie
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.ready_folders import enter_folder, make_rows, write_folder

pytestmark = pytest.mark.data


def test_a_plan_says_what_the_job_needs_and_starts_nothing(http: httpx.Client, dataset: str, jobs: JobStore) -> None:
    before = jobs.list_ids()
    plan = http.post("/v1/jobs/plan", json={"preset": "tiny", "data": {"dataset": dataset}}).json()
    assert (plan["ok"], plan["problems"]) == (True, [])
    assert plan["bytes_per_token"] == 4 * 128 * 4  # slots, hidden size, float32
    assert plan["tokens"]["rows"] == 2
    assert plan["tokens"]["tokens"]["most"] == 2 * 256
    sizes = {stage["name"]: stage["disk_bytes"] for stage in plan["stages"]}
    assert sizes["generate"]["most"] > 2 * 256 * plan["bytes_per_token"]
    assert plan["disk_bytes"]["likely"] == sum(size["likely"] for size in sizes.values())
    assert plan["draft_parameters_total"] == 418_688
    assert plan["steps"] == 8
    assert plan["verifier_starts"] == 2  # the trained and the untrained draft
    assert plan["document"]["verifier"]["endpoint"]
    assert jobs.list_ids() == before


def test_a_plan_multiplies_starts_with_the_latest_load(http: httpx.Client, dataset: str, jobs: JobStore) -> None:
    document = {"preset": "tiny", "data": {"dataset": dataset}, "verifier": {"managed": {"max_model_len": 512}}}
    plan = http.post("/v1/jobs/plan", json=document).json()
    assert (plan["verifier_starts"], plan["verifier_load_seconds"], plan["loading_seconds"]) == (3, None, None)
    fleet, model = Fleet(jobs.redis), plan["document"]["verifier"]["model"]
    for seconds in (900.0, 300.5):
        fleet.note_load(model, seconds)
    plan = http.post("/v1/jobs/plan", json=document).json()
    assert (plan["verifier_load_seconds"], plan["loading_seconds"]) == (300.5, 901.5)
    other = http.post("/v1/jobs/plan", json=document | {"evaluate": {"mode": "offline", "baseline": "none"}}).json()
    assert (other["verifier_starts"], other["loading_seconds"]) == (1, 300.5)


def test_rows_that_bring_all_their_states_load_no_verifier(
    http: httpx.Client, store: LocalArtifactStore, tmp_path: Path
) -> None:
    verifier = {"managed": {"max_model_len": 512}}
    for states, starts in ((None, 0), (range(3), 1)):
        dataset = new_id("ds")
        rows = write_folder(tmp_path / dataset, make_rows(4), states=states)
        enter_folder(store.root / "datasets" / dataset, rows)
        document = {"preset": "tiny", "data": {"dataset": dataset, "generate": False}, "verifier": verifier}
        evaluate = {"evaluate": {"mode": "offline", "baseline": "none"}}
        plan = http.post("/v1/jobs/plan", json=document | evaluate).json()
        assert plan["verifier_starts"] == starts, plan["problems"]


def test_a_plan_names_every_problem(http: httpx.Client, dataset: str) -> None:
    document = {"preset": "tiny", "data": {"dataset": "ds_absent"}, "draft": {"vocab_size": 5000}}
    plan = http.post("/v1/jobs/plan", json=document).json()
    assert not plan["ok"]
    assert {problem["pointer"] for problem in plan["problems"]} == {"/data/dataset", "/draft/vocab_size"}
    unresolved = http.post("/v1/jobs/plan", json={"train": {"lr": -1}, "nonsense": 1}).json()
    pointers = {problem["pointer"] for problem in unresolved["problems"]}
    assert {"/train/lr", "/nonsense"} <= pointers
    assert unresolved["document"] is None
    assert http.post("/v1/jobs/plan", content=b"[]").status_code == 422


def test_a_plan_says_when_the_quota_is_too_small(redis_handle, tmp_path, prompts) -> None:
    with gateway_process(tmp_path, redis_handle.url, store_quota_bytes="100000") as gateway:
        uploaded = httpx.post(f"{gateway.url}/v1/datasets", content=prompts.read_bytes()).json()
        document = {"preset": "tiny", "data": {"dataset": uploaded["id"]}}
        plan = httpx.post(f"{gateway.url}/v1/jobs/plan", json=document).json()
    assert plan["store"]["quota_bytes"] == 100_000
    assert 0 < plan["store"]["used_bytes"] < 10_000
    assert not plan["ok"]
    assert plan["problems"][0]["message"].startswith("the job needs about")


def test_the_shell_shows_a_plan(gateway: GatewayProcess, dataset: str) -> None:
    shown = eyrie(gateway.url, "plan", "--preset", "tiny", "--dataset", dataset)
    assert shown.returncode == 0, shown.stderr
    assert "generate" in shown.stdout
    assert "418,688 parameters" in shown.stdout
    refused = eyrie(gateway.url, "plan", "--preset", "tiny", "--dataset", dataset, "--set", "draft.vocab_size=5000")
    assert (refused.returncode, "/draft/vocab_size" in refused.stdout) == (2, True)


def test_more_gpus_than_any_worker_has_are_refused_with_what_there_is(http: httpx.Client, dataset: str, jobs: JobStore):
    document = {"preset": "tiny", "data": {"dataset": dataset}, "train": {"gpus": 3}}
    assert http.post("/v1/jobs/plan", json=document).json()["ok"], "no worker lives: nothing is known"
    gpus = [GpuInfo(id=f"fake-{number}", name="faked") for number in range(2)]
    worker = WorkerRecord(id="w", host="h", pid=1, version="0", gpus=gpus, started_at=now(), seen_at=now())
    Fleet(jobs.redis).register(worker, life_s=600)
    try:
        problems = http.post("/v1/jobs/plan", json=document).json()["problems"]
        refused = http.post("/v1/jobs", json=document)
    finally:
        Fleet(jobs.redis).sign_off("w")
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/train/gpus")
    assert "3 GPUs are asked for and the largest of 1 live workers, on h, has 2" in refused.json()["detail"]
    assert [problem["pointer"] for problem in problems] == ["/train/gpus"]


def test_a_plan_tells_the_time_by_jobs_that_were_done_before(http: httpx.Client, dataset: str, jobs: JobStore) -> None:
    document = {"preset": "tiny", "data": {"dataset": dataset, "system_prompt": "timed"}}
    unknown = http.post("/v1/jobs/plan", json=document).json()
    assert (unknown["seconds"], {stage["seconds"] for stage in unknown["stages"]}) == (None, {None})
    job_id = http.post("/v1/jobs", json=document).json()["id"]

    def finish(record: JobRecord) -> None:
        for stage in record.stages:
            stage.status, stage.attempt, stage.seconds = StageStatus.SUCCEEDED, 1, 10.0
            stage.progress = Progress(done=4, total=4, unit="rows", updated_at=now())

    jobs.update(job_id, finish)
    plan = http.post("/v1/jobs/plan", json=document).json()
    seconds = {stage["name"]: stage["seconds"] for stage in plan["stages"]}
    assert seconds["generate"] == 10.0 / 4 * plan["tokens"]["rows"]
    assert seconds["train"] == 10.0 / 4 * plan["steps"]
    assert seconds["publish"] == 10.0
    assert plan["seconds"] == sum(seconds.values())
    other = http.post("/v1/jobs/plan", json={**document, "train": {"ttt_steps": 2}}).json()
    assert {stage["seconds"] for stage in other["stages"] if stage["name"] == "train"} == {None}
    assert other["seconds"] is None


def test_a_plan_tells_the_memory_of_gpus_that_train(http: httpx.Client, dataset: str) -> None:
    document = {"preset": "tiny", "data": {"dataset": dataset}}
    assert http.post("/v1/jobs/plan", json=document).json()["gpu_memory_bytes"] is None
    on_gpu = http.post("/v1/jobs/plan", json={**document, "train": {"gpus": 1, "dtype": "bfloat16"}}).json()
    memory, parameters = on_gpu["gpu_memory_bytes"], on_gpu["draft_parameters"]
    kept = on_gpu["draft_parameters_total"] + parameters["head"]  # the verifier's head stands beside the draft's
    assert memory["least"] == 4 * (kept + parameters["trained"]) + 8 * parameters["trained"]
    assert memory["least"] < memory["likely"] < memory["most"]
