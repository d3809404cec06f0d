"""What can be read of a finished job: lineage, rows with their masks, books and metrics; over REST and in the shell."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from shared.schemas.job import JobRecord, JobStatus, Stage
from tests.support.gateway_process import ROOT, gateway_process
from tests.support.stage_runs import prompts
from tests.support.verifier_stub import VerifierStub, words
from tests.support.worker_site import DATA, Site
from tools.embedded_redis import start_redis

pytestmark = pytest.mark.data
ROWS = 10
REJECTED = [{"prompt": ""}, {"prompt": "please answer prompt-0"}]


@dataclass
class Finished:
    """A job that has succeeded on real data stages, and the gateway before it."""

    site: Site
    record: JobRecord
    url: str

    def get(self, path: str, status: int = 200, **params: Any) -> Any:
        response = httpx.get(f"{self.url}{path}", params=params, timeout=30)
        assert response.status_code == status, response.text
        return response.json()

    def eyrie(self, *arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "services.cli.main", *arguments, "--url", self.url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "exchange").mkdir()
    with VerifierStub(folder / "exchange") as stub:
        site = Site(folder, stub, start_redis(folder / "redis"))
        try:
            with gateway_process(folder, site.redis.url) as gateway:
                site.start_worker(DATA)
                job_id = site.submit([*prompts(ROWS), *REJECTED])
                record = site.wait_for(job_id, JobStatus.SUCCEEDED)
                yield Finished(site, record, gateway.url)
        finally:
            site.close()


def nodes(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield tree
    for inner in tree["inputs"]:
        yield from nodes(inner)


def in_full(tree: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    found = [node for node in nodes(tree) if node["kind"] == kind and not node["ref"]]
    assert len({node["name"] for node in found}) == len(found)  # each thing once
    return {node["name"]: node for node in found}


def test_the_lineage_leads_from_the_draft_to_files_and_verifier(finished: Finished) -> None:
    lineage = finished.get(f"/v1/drafts/{finished.record.draft}/lineage", verify="full")
    assert lineage["verified"]
    assert lineage["checked"] == "content"
    stages = in_full(lineage["tree"], "stage")
    assert set(stages) == {stage.value for stage in Stage}
    for stage, node in stages.items():
        manifest = finished.site.manifest(finished.record, Stage(stage))
        assert node["digest"] == manifest.digest()
        assert node["files"] == len(manifest.files)
        assert node["facts"]["versions"]["python"]
    assert stages["generate"]["facts"]["sampling"]["temperature"] == 0.0
    assert stages["capture"]["facts"]["layer_ids"] == [1, 2, 3, 4]
    assert stages["prepare"]["facts"]["seed"] == 0
    (dataset,) = in_full(lineage["tree"], "dataset").values()
    assert dataset["name"] == finished.record.spec.data.dataset
    (file,) = in_full(lineage["tree"], "file").values()
    assert len(file["digest"]) == 64
    (verifier,) = in_full(lineage["tree"], "verifier").values()
    assert verifier["facts"]["config_sha256"]
    assert verifier["facts"]["tokenizer_sha256"]
    assert str(finished.site.folder) not in json.dumps(lineage)


def test_the_lineage_is_a_tree_in_the_shell(finished: Finished) -> None:
    text = finished.eyrie("lineage", finished.record.draft)
    for name in (*Stage, "dataset", "verifier tiny-verifier"):
        assert f"✔ {name}" in text
    assert max(map(len, text.splitlines())) <= 130
    assert json.loads(finished.eyrie("lineage", finished.record.draft, "-o", "json"))["verified"]


def test_what_is_not_any_more_what_it_was_does_not_verify(finished: Finished) -> None:
    dataset = finished.record.spec.data.dataset
    file = next(path for path in finished.site.store.path(f"datasets/{dataset}").rglob("*.jsonl"))
    content = file.read_bytes()
    file.write_bytes(content.replace(b"prompt-1", b"prompt-X"))
    try:
        assert finished.get(f"/v1/drafts/{finished.record.draft}/lineage")["verified"]  # sizes are as they were
        text = finished.eyrie("lineage", finished.record.draft, "--verify", code=1)
        assert "has other content" in text
    finally:
        file.write_bytes(content)
    states = next(finished.site.store.root.glob("stages/capture/*/attempts/*/out/dataset/hidden_states/hs_0*"))
    moved = states.rename(states.with_name("away"))
    try:
        tree = finished.get(f"/v1/drafts/{finished.record.draft}/lineage")
        assert not tree["verified"]
        capture = in_full(tree["tree"], "stage")["capture"]
        assert capture["problems"] == ["dataset/hidden_states/hs_0.safetensors is missing"]
    finally:
        moved.rename(states)


def test_every_stage_shows_books_that_continue_each_other(finished: Finished) -> None:
    job = finished.get(f"/v1/jobs/{finished.record.id}")
    books = {stage["name"]: stage["summary"]["accounting"] for stage in job["stages"]}
    assert books["prepare"]["taken"] == ROWS + len(REJECTED)
    assert sum(books["prepare"]["rejected"].values()) == len(REJECTED)
    assert [books[name]["taken"] for name in ("capture", "vocab", "train")] == [ROWS] * 3
    history = json.loads(
        finished.site.store.read(f"{finished.site.manifest(finished.record, Stage.PUBLISH).root}/eyrie.json")
    )
    assert history["accounting"]["prepare"] == books["prepare"]
    assert f"2 of {ROWS + 2} rows rejected" in finished.eyrie("show", finished.record.id)


def test_metrics_count_a_computed_stage_once_and_a_reused_one_never(finished: Finished) -> None:
    before = items(finished)
    assert before['prepare",outcome="kept",reason="",unit="rows'] == ROWS
    again = finished.site.submit([*prompts(ROWS), *REJECTED])
    finished.site.wait_for(again, JobStatus.SUCCEEDED)
    assert items(finished) == before
    assert 'eyrie_jobs{status="succeeded"} 2.0' in httpx.get(f"{finished.url}/metrics").text


def items(finished: Finished) -> dict[str, float]:
    lines = [line for line in httpx.get(f"{finished.url}/metrics").text.splitlines() if "stage_items_total{" in line]
    found = {}
    for line in lines:
        labels, _, value = line.rpartition(" ")
        parts = dict(part.split("=") for part in labels[labels.index("{") + 1 : -1].split(","))
        name = ",".join([parts["stage"][1:], *(f"{key}={parts[key]}" for key in ("outcome", "reason", "unit"))])[:-1]
        found[name] = float(value)
    return found


def test_a_row_is_shown_with_its_mask_and_the_verifiers_text(finished: Finished) -> None:
    page = finished.get(f"/v1/jobs/{finished.record.id}/rows", limit=3)
    assert page["has_more"]
    rest = finished.get(f"/v1/jobs/{finished.record.id}/rows", after=page["data"][-1]["row_id"])
    listed = [*page["data"], *rest["data"]]
    assert len({row["row_id"] for row in listed}) == ROWS
    held_out = finished.get(f"/v1/jobs/{finished.record.id}/rows", split="val")["data"]
    assert {row["row_id"] for row in held_out} == {row["row_id"] for row in listed if row["split"] == "val"}
    for entry in listed[:2]:
        row = finished.get(f"/v1/jobs/{finished.record.id}/rows/{entry['row_id']}")
        context, learnt = row["segments"]
        assert (context["supervised"], learnt["supervised"]) == (False, True)
        assert context["token_ids"] + learnt["token_ids"] == row["input_ids"]
        assert row["loss_mask"] == [0] * len(context["token_ids"]) + [1] * len(learnt["token_ids"])
        assert learnt["token_ids"][-2:] == words("the answer to")[-1:] + row["input_ids"][-1:]
        assert "the answer to prompt-" in learnt["text"]
        assert "please answer prompt-" in context["text"]
        assert row["seq_len"] == len(row["input_ids"])


def test_the_rows_of_generate_are_the_same(finished: Finished) -> None:
    """Before capture is done they come from generate's shards."""
    rows = {}
    for stage in ("capture", "generate"):
        page = finished.get(f"/v1/jobs/{finished.record.id}/rows", limit=200)["data"]
        shown = [finished.get(f"/v1/jobs/{finished.record.id}/rows/{row['row_id']}") for row in page[:3]]
        rows[stage] = {row["row_id"]: (row["input_ids"], row["loss_mask"], row["last_id"]) for row in shown}
        key = finished.record.stage(Stage.CAPTURE).manifest
        path = finished.site.store.root / key
        if stage == "capture":
            away = path.rename(path.with_suffix(".away"))
    away.rename(path)
    common = rows["capture"].keys() & rows["generate"].keys()
    assert common
    assert all(rows["capture"][name] == rows["generate"][name] for name in common)


def test_a_row_in_the_shell_has_its_learnt_tokens_marked(finished: Finished) -> None:
    listed = finished.eyrie("rows", finished.record.id)
    row_id = listed.splitlines()[1].split()[0]
    row = finished.get(f"/v1/jobs/{finished.record.id}/rows/{row_id}")
    learnt = row["segments"][1]
    assert f"«{learnt['text']}»" in finished.eyrie("rows", finished.record.id, row_id)
    assert f"«{' '.join(map(str, learnt['token_ids']))}»" in finished.eyrie("rows", finished.record.id, row_id, "--ids")


@pytest.mark.parametrize("row_id", ["..%2f..%2fmanifest.json", "absent.0", "%00"])
def test_a_row_that_is_none_is_404(finished: Finished, row_id: str) -> None:
    finished.get(f"/v1/jobs/{finished.record.id}/rows/{row_id}", status=404)


def test_without_a_verifier_a_row_says_so_and_has_no_text(finished: Finished, monkeypatch: Any) -> None:
    row_id = finished.get(f"/v1/jobs/{finished.record.id}/rows", limit=1)["data"][0]["row_id"]
    finished.site.stub.gone = True
    try:
        row = finished.get(f"/v1/jobs/{finished.record.id}/rows/{row_id}")
    finally:
        finished.site.stub.gone = False
    assert {segment["text"] for segment in row["segments"]} == {None}
    assert row["text_source"].startswith("no text")
