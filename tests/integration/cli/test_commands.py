"""Each command against a real service: what it prints for people, what for programs, and with which exit code."""

import json
from pathlib import Path

import pytest

from shared.schemas.job import JobRecord, JobStatus
from tests.integration.cli.conftest import Service, Shell
from tests.support.wait import wait_until


def ids(found: list[dict]) -> list[str]:
    return [entry["id"] for entry in found]


def test_jobs_are_listed_by_each_filter(shell: Shell, finished: JobRecord, failed: JobRecord) -> None:
    by_filter = {
        ("--status", "succeeded"): [finished.id],
        ("--status", "failed"): [failed.id],
        ("--name", "nightly"): [finished.id],
        ("--metadata", "team=search"): [finished.id],
        ("--metadata", "team=search", "--metadata", "train=refuse"): [],
        ("--created-after", "1h"): [failed.id, finished.id],
        ("--created-before", "1h"): [],
        ("--created-before", "2020-01-01"): [],
        ("--created-after", failed.created_at.isoformat()): [],
    }
    assert {words: ids(shell.json("list", *words)) for words in by_filter} == by_filter
    assert finished.id in shell("list")
    shell("list", "--created-after", "yesterday", code=2)
    assert "yesterday is no time" in shell.errors
    shell("list", "--metadata", "team", code=2)
    assert "write KEY=VALUE" in shell.errors


def test_a_script_that_runs_again_makes_one_job_and_one_dataset(shell: Shell, tmp_path: Path) -> None:
    prompts = tmp_path / "~ prompts, (1).jsonl"
    prompts.write_text('{"prompt": "once"}\n')
    words = ("submit", "--preset", "tiny", "--prompts", str(prompts), "--idempotency-key", "nightly")
    first, again = shell.json(*words), shell.json(*words)
    assert (again["id"], again["spec"]) == (first["id"], first["spec"])
    named = [dataset["id"] for dataset in shell.json("datasets", "list") if dataset["name"] == "prompts- -1-.jsonl"]
    assert named == [first["spec"]["data"]["dataset"]]
    prompts.write_text('{"prompt": "another"}\n')
    shell(*words, code=2)
    assert "used with another document" in shell.errors
    shell("submit", "--prompts", str(tmp_path), "--idempotency-key", "folder", code=2)
    assert "give --dataset" in shell.errors
    shell("cancel", first["id"])


def test_what_a_job_did_and_made(shell: Shell, finished: JobRecord) -> None:
    assert "100%" in shell("show", finished.id)
    events = shell.lines("events", finished.id)
    assert [event["data"]["status"] for event in events if event["type"] == "job"][-1] == "succeeded"
    assert f"{events[0]['id']}  job  status=queued" in shell("events", finished.id, "--limit", "1")
    assert shell.lines("events", finished.id, "--after", events[2]["id"]) == events[3:]
    files = shell.json("artifacts", finished.id)
    assert "evaluate/report.json" in [file["path"] for file in files]
    assert {file["stage"] for file in shell.json("artifacts", finished.id, "--stage", "train")} == {"train"}
    assert "train/draft/config.json" in shell("artifacts", finished.id)


def test_streams_of_an_ended_job_are_whole_and_end_by_themselves(
    shell: Shell, service: Service, finished: JobRecord
) -> None:
    for stage in ("generate", "train"):
        with service.site.store.path(f"jobs/{finished.id}/logs/{stage}-1.log").open("a") as log:
            log.write(f"{stage} has spoken\n")
    events = shell.lines("events", finished.id)
    assert shell.lines("events", finished.id, "--follow") == events
    assert {event["type"] for event in shell.lines("events", "-f", finished.id, "--type", "stage")} == {"stage"}
    lines = shell.lines("logs", finished.id)
    assert shell.lines("logs", finished.id, "--follow") == lines
    said = [(line["stage"], line["attempt"], line["line"]) for line in lines]
    assert said == [("generate", 1, "generate has spoken"), ("train", 1, "train has spoken")]
    text = "==> generate-1 <==\ngenerate has spoken\n==> train-1 <==\ntrain has spoken\n"
    assert shell("logs", "-f", finished.id) == text
    assert shell("logs", finished.id, "--stage", "train") == "train has spoken\n"
    assert shell("watch", finished.id).count("succeeded") >= 1


def test_curves_and_checkpoints(shell: Shell, service: Service, finished: JobRecord) -> None:
    for step in range(1, 101):
        values = {"stage": "train", "step": step, "loss": 4 - step / 50}
        service.site.jobs.append_event(finished.id, "metric", values)
    points = shell.json("metrics", finished.id, "--name", "loss")
    assert [(point["step"], point["values"]["loss"]) for point in points] == [(n, 4 - n / 50) for n in range(1, 101)]
    table = shell("metrics", finished.id).splitlines()
    assert (table[0].split(), table[1].split(), table[-1].split()) == (
        ["STAGE", "STEP", "loss"],
        ["train", "1", "3.98"],
        ["train", "100", "2"],
    )
    assert len(table) <= 21
    assert len(shell.json("metrics", finished.id, "--stage", "train", "--max-points", "7")) == 7
    for step in range(101, 401):
        service.site.jobs.append_event(finished.id, "metric", {"stage": "train", "step": step, "loss": 2.0})
    assert len(shell.json("metrics", finished.id, "--max-points", "150")) == 150
    service.site.jobs.append_event(finished.id, "checkpoint", {"stage": "train", "step": 50, "epoch": 1})
    (checkpoint,) = shell.json("checkpoints", finished.id)
    assert (checkpoint["step"], checkpoint["kind"], checkpoint["available"]) == (50, ["resume"], False)
    assert shell("checkpoints", finished.id).splitlines()[1].split()[:4] == ["50", "1", "resume", "no"]


def test_artifacts_are_downloaded_by_stage_and_name(shell: Shell, finished: JobRecord, tmp_path: Path) -> None:
    to = ("--to", str(tmp_path))
    got = shell.json("download", finished.id, "--stage", "evaluate", *to)
    assert (got["job"], got["files"]) == (finished.id, [str(tmp_path / "evaluate" / "report.json")])
    assert json.loads((tmp_path / "evaluate" / "report.json").read_text())["suites"]
    said = shell("download", finished.id, "--artifacts", "--file", "train/draft/*", *to)
    assert f"{finished.id}: 2 files in {tmp_path}" in said
    assert (tmp_path / "train" / "draft" / "model.safetensors").read_text() == "weights"
    shell("download", finished.id, "--artifacts", "--file", "*.exe", *to, code=4)
    assert "no file like *.exe" in shell.errors
    shell("download", str(finished.draft), "--artifacts", *to, code=2)


def test_a_draft_is_shown_and_downloaded(shell: Shell, finished: JobRecord, tmp_path: Path) -> None:
    draft = str(finished.draft)
    assert ids(shell.json("drafts", "list")) == [draft]
    assert "2.500" in shell("drafts", "show", draft)
    files = shell.json("drafts", "show", draft)["files"]
    got = shell.json("download", finished.id, "--to", str(tmp_path / "draft"))
    assert (got["draft"], len(got["files"])) == (draft, len(files))
    assert shell.json("lineage", draft)["verified"]


def test_drafts_are_tagged_compared_and_deleted(shell: Shell, service: Service, finished: JobRecord) -> None:
    draft, again = str(finished.draft), {"data": {"dataset": finished.spec.data.dataset}}
    other = service.site.wait_for(
        service.site.submit(**again, train={"lr": 4e-3}, metadata={"team": "other"}), JobStatus.SUCCEEDED
    )
    assert shell("drafts", "tag", draft, "production").strip() == f"{draft} has the tags production"
    assert ids(shell.json("drafts", "list", "--tag", "production")) == [draft]
    assert shell.json("drafts", "show", "production")["id"] == draft
    compared = shell("compare", "production", str(other.draft))
    for part in (draft, str(other.draft), "heldout", "2.500", "/train/lr", "0.004"):
        assert part in compared
    assert len(shell.json("compare", draft, str(other.draft))["suites"][0]["entries"]) == 2
    shell("compare", draft, code=2)
    shell("drafts", "delete", draft, code=5)
    assert shell("drafts", "untag", draft, "production").strip() == f"{draft} has no tags"
    assert shell("drafts", "delete", str(other.draft)).strip() == f"{other.draft} deleted"
    shell("drafts", "show", str(other.draft), code=4)
    assert ids(shell.json("drafts", "list", "--job", finished.id)) == [draft]


def test_the_fleet_is_shown(shell: Shell, service: Service, finished: JobRecord) -> None:
    (worker,) = shell.json("workers")
    assert worker["id"] in shell("workers")
    assert f"id: {worker['id']}\n" in shell("workers", worker["id"])
    assert shell.json("workers", worker["id"])["pid"] == service.site.workers[0].pid
    assert shell("gpus").strip() == "no gpus"
    shell("gpus", "GPU-9", code=4)
    (verifier,) = shell.json("verifiers")
    assert verifier["status"] == "unreachable"
    assert "unreachable" in shell("verifiers")
    assert shell.json("verifiers", verifier["id"])["kind"] == "external"


def test_a_dataset_in_use_is_kept_and_another_is_deleted(shell: Shell, finished: JobRecord, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n')
    made = shell.json("datasets", "upload", str(path), "--name", "mine")["id"]
    assert made in ids(shell.json("datasets", "list"))
    assert "mine" in shell("datasets", "show", made)
    shell("datasets", "delete", finished.spec.data.dataset, code=5)
    assert finished.id in shell.errors
    assert shell("datasets", "delete", made).strip() == f"{made} deleted"
    shell("datasets", "show", made, code=4)


def test_presets_are_documents_to_start_from(shell: Shell) -> None:
    assert "kimi-k2.5" in [preset["name"] for preset in shell.json("presets")]
    assert "train:\n" in shell("presets", "tiny")
    shell("presets", "huge", code=4)
    assert "there are" in shell.errors


def test_an_ended_job_is_deleted_and_then_gone(shell: Shell, service: Service, finished: JobRecord) -> None:
    shell("delete", finished.id, code=5)
    data = {"dataset": finished.spec.data.dataset}
    again = service.site.submit(data=data, train={"lr": 7e-3}, metadata={"evaluate": "hold"})
    shell("cancel", again)
    shell("watch", again, code=1)
    assert shell("delete", again).strip() == f"{again} deleted"
    shell("show", again, code=4)


def test_keys_are_made_listed_and_deleted(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = shell("keys", "create", "--name", "ci").strip()
    assert "not shown again" in shell.errors
    made = next(entry for entry in shell.json("keys", "list") if entry["name"] == "ci")
    assert made["id"] in shell("keys", "list")
    file = tmp_path / "ci.key"
    file.write_text(key)
    monkeypatch.delenv("EYRIE_API_KEY_FILE")
    shell("list", code=6)
    assert "--api-key-file" in shell.errors
    shell("list", "--api-key-file", str(file))
    shell("--api-key-file", str(file), "list")
    assert shell("keys", "delete", made["id"], "--api-key-file", str(file)).strip() == f"{made['id']} deleted"


def test_webhooks_are_made_tried_and_deleted(shell: Shell, service: Service) -> None:
    service.hooks.secret = shell("webhooks", "create", service.hooks.url, "--event", "job.failed").strip()
    hint = shell.errors
    hook = shell.json("webhooks", "list")[0]["id"]
    assert f"eyrie webhooks test {hook}" in hint
    assert "job.failed" in shell("webhooks", "show", hook)
    message = shell.json("webhooks", "test", hook)["id"]
    wait_until(lambda: message in service.hooks.ids(), what="the message arrives")
    assert [told for told, _ in service.hooks.verified] == [message]
    wait_until(lambda: "delivered" in shell("webhooks", "deliveries", hook), what="it is in the log")
    assert ids(shell.json("webhooks", "deliveries", hook)) == [message]
    assert shell("webhooks", "delete", hook).strip() == f"{hook} deleted"
    assert shell("webhooks", "list").strip() == "no webhooks"
    shell("webhooks", "create", "http://elsewhere.example/hook", code=2)
    assert "EYRIE_WEBHOOK_HOSTS" in shell.errors
