"""The command line against a real gateway: results, exit codes, and never a traceback."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from shared.job_store import JobStore
from shared.schemas.job import JobRecord, JobStatus, Progress, Stage, StageStatus, now
from tests.support.gateway_process import ROOT, GatewayProcess, free_port
from tests.support.wait import wait_until


def eyrie(url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    result = subprocess.run(
        [sys.executable, "-m", "services.cli.main", *arguments, "--url", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "Traceback" not in result.stderr
    return result


def submitted(gateway: GatewayProcess, prompts: Path, *arguments: str) -> dict:
    result = eyrie(gateway.url, "submit", "--prompts", str(prompts), "-o", "json", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_submit_with_flags_makes_the_job(gateway: GatewayProcess, prompts: Path) -> None:
    flags = ("--epochs", "3", "--gpus", "2", "--set", "train.lr=1e-3", "--set", "metadata.run=7", "--name", "mine")
    job = submitted(gateway, prompts, *flags)
    spec = job["spec"]
    assert (spec["train"]["epochs"], spec["train"]["gpus"], spec["train"]["lr"]) == (3, 2, 1e-3)
    assert (job["name"], job["metadata"]) == ("mine", {"run": "7"})


def test_submit_with_a_document(gateway: GatewayProcess, prompts: Path, tmp_path: Path) -> None:
    document = tmp_path / "job.yaml"
    document.write_text("name: from yaml\ntrain:\n  epochs: 2\n  lr: 1e-4\n")
    job = submitted(gateway, prompts, str(document), "--epochs", "5")
    assert (job["name"], job["spec"]["train"]["epochs"], job["spec"]["train"]["lr"]) == ("from yaml", 5, 1e-4)


def test_list_show_cancel_and_datasets(gateway: GatewayProcess, prompts: Path) -> None:
    job_id = submitted(gateway, prompts)["id"]
    assert job_id in eyrie(gateway.url, "list").stdout
    assert job_id in [job["id"] for job in json.loads(eyrie(gateway.url, "list", "-o", "json").stdout)]
    assert "prepare" in eyrie(gateway.url, "show", job_id).stdout
    assert json.loads(eyrie(gateway.url, "pause", job_id, "-o", "json").stdout)["status"] == "paused"
    assert eyrie(gateway.url, "resume", job_id).stdout.strip() == f"{job_id} queued"
    refused = eyrie(gateway.url, "retry", job_id)
    assert (refused.returncode, "the job is queued" in refused.stderr) == (5, True)
    assert json.loads(eyrie(gateway.url, "cancel", job_id, "-o", "json").stdout)["status"] == "cancelled"
    again = json.loads(eyrie(gateway.url, "retry", job_id, "-o", "json").stdout)
    assert (again["retry_of"], again["status"]) == (job_id, "queued")
    watched = eyrie(gateway.url, "watch", job_id)
    assert (watched.returncode, "cancelled" in watched.stdout) == (1, True)
    uploaded = json.loads(eyrie(gateway.url, "datasets", "upload", str(prompts), "-o", "json").stdout)
    assert uploaded["id"] in eyrie(gateway.url, "datasets", "list").stdout
    assert eyrie(gateway.url, "drafts", "list").stdout.strip() == "no drafts"
    assert eyrie(gateway.url, "download", job_id).returncode == 5


def test_watch_says_what_happens_and_ctrl_c_only_detaches(
    gateway: GatewayProcess, prompts: Path, jobs: JobStore, http: httpx.Client
) -> None:
    job_id = submitted(gateway, prompts)["id"]

    def start(record: JobRecord) -> None:
        record.status, record.token = JobStatus.RUNNING, "t"
        record.stage(Stage.TRAIN).status = StageStatus.RUNNING

    jobs.acquire_run(job_id, "t", 600)
    jobs.update(job_id, start)
    progress = Progress(done=5, total=20, unit="steps", rate=2.5, eta_s=65, metrics={"loss": 2.3}, updated_at=now())
    jobs.set_progress(job_id, "t", progress)
    command = [sys.executable, "-u", "-m", "services.cli.main", "watch", job_id, "--url", gateway.url]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    read = process.stdout.readline
    line = wait_until(lambda: text if "loss" in (text := read()) else None, what="progress is said")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "train 5/20 steps 2.50/s ETA 1m05s loss 2.3" in line
    assert http.get(f"/v1/jobs/{job_id}").json()["status"] == "running"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "job_nothing"], 4, "no job"),
        (["cancel", "../x"], 4, "there is nothing"),
        (["drafts", "show", "draft_x"], 4, "no draft"),
        (["submit"], 2, "no dataset"),
        (["submit", "/no/such/file"], 2, "/no/such/file"),
        (["submit", "--prompts", "/no/such/file"], 2, "/no/such/file"),
        (["submit", "--dataset", "ds_x", "--set", "train.speed=1"], 2, "/train/speed"),
        (["submit", "--dataset", "ds_x", "--set", "train"], 2, "PATH=VALUE"),
        (["submit", "--dataset", "ds_x", "--set", "preset.x=1", "--preset", "tiny"], 2, "preset"),
        (["list", "--status", "asleep"], 2, "/status"),
        (["list", "--limit", "x"], 2, "limit"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_bad_input_is_said_with_its_exit_code(
    arguments: list[str], code: int, says: str, gateway: GatewayProcess
) -> None:
    result = eyrie(gateway.url, *arguments)
    assert (result.returncode, says in result.stderr) == (code, True), result.stderr


def test_a_bad_document_file_is_named_with_its_line(gateway: GatewayProcess, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("train:\n  lr: [1\n")
    result = eyrie(gateway.url, "submit", str(path))
    assert (result.returncode, f"{path}, line 3" in result.stderr) == (2, True), result.stderr


def test_a_bad_prompts_file_is_refused_by_line(gateway: GatewayProcess, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"a": 1}\nnot json\n')
    result = eyrie(gateway.url, "datasets", "upload", str(path))
    assert (result.returncode, "line 2: not JSON" in result.stderr) == (2, True), result.stderr


def test_no_gateway_is_exit_code_3() -> None:
    result = eyrie(f"http://127.0.0.1:{free_port()}", "list")
    assert (result.returncode, "does not answer" in result.stderr) == (3, True)
