"""The main job, held against the truth: ids, hidden states, splits, acceptance, and the published folder."""

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from datasets import load_from_disk
from safetensors.torch import load_file
from speculators.train.data import ArrowDataset

from services.worker.evaluation.acceptance import acceptance, settled_counters
from services.worker.stages import train
from services.worker.training.library_config import split_ratio
from services.worker.verifier_process import running_verifier
from shared.presets import TINY_VERIFIER
from shared.schemas.job import Stage
from shared.verifier_settings import VerifierMode, VerifierSettings
from tests.e2e.conftest import Pipeline
from tests.support.reference_states import reference_hidden_states, relative_error
from tests.support.stage_runs import StageRunner
from tests.support.synthetic_rows import Row, swap_auxiliary_states, write_dataset

MIN_ACCEPTANCE_LENGTH = 2.8
MIN_GAIN = 2.0
MIN_CONTROL_DISTANCE = 0.4
MAX_STATE_ERROR = 1e-3
MAX_FORETELLING_ERROR = 0.1
COMPARED_ROWS = 12
ASKED_PROMPTS = 8
# Nothing listens there: whatever would go to a hub fails at once.
NO_NETWORK = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
}


def test_stored_ids_are_those_that_the_verifier_returned(pipeline: Pipeline) -> None:
    rows = pipeline.generated()
    said = {row["id"]: _said(pipeline, row["id"]) for row in rows}
    assert len(rows) == pipeline.job["stages"][1]["summary"]["rows"]
    for row in rows:
        prompt, answer = said[row["id"]]["prompt_token_ids"], said[row["id"]]["choices"][0]["token_ids"]
        assert [*row["input_ids"], row["last_id"]] == prompt + answer
        assert row["loss_mask"] == [0] * len(prompt) + [1] * (len(answer) - 1)


def test_inspected_prompts_are_those_that_the_verifier_read(pipeline: Pipeline) -> None:
    found, rows = pipeline.inspection, {row["conversation"]: row for row in pipeline.generated()}
    summary = pipeline.job["stages"][0]["summary"]
    assert [found[name] for name in ("rows", "kept", "train", "val")] == [
        summary[name] for name in ("rows", "kept", "train", "val")
    ]
    assert found["tokens"]["complete"]
    assert found["tokens"]["total"] == sum(row["loss_mask"].count(0) for row in rows.values())
    for sample in found["samples"]:
        prompt, place = sample["turns"][0]["segments"]
        row = rows[sample["id"]]
        assert prompt["token_ids"] == row["input_ids"][: row["loss_mask"].count(0)]
        assert prompt["text"].startswith("<|im_user|>")
        assert (place["token_ids"], place["supervised"]) == ([], True)


def test_trained_rows_are_those_that_were_generated(pipeline: Pipeline) -> None:
    by_id = {row["id"]: row for row in pipeline.generated()}
    dataset = load_from_disk(str(pipeline.out(Stage.CAPTURE) / "dataset"))
    for entry, stored in zip(pipeline.index(), dataset, strict=True):
        row = by_id[entry["row_id"]]
        assert stored["input_ids"].tolist() == row["input_ids"]
        assert stored["loss_mask"].tolist() == row["loss_mask"]
        assert (entry["last_id"], entry["line"]) == (row["last_id"], row["line"])


def test_hidden_states_equal_a_float32_forward_pass(pipeline: Pipeline) -> None:
    folder = pipeline.out(Stage.CAPTURE) / "dataset"
    layer_ids = json.loads((folder / "meta.json").read_text())["layer_ids"]
    entries = pipeline.index()
    for entry in entries[:: max(1, len(entries) // COMPARED_ROWS)]:
        captured = load_file(folder / "hidden_states" / f"hs_{entry['index']}.safetensors")
        reference = reference_hidden_states(TINY_VERIFIER, captured["token_ids"].tolist(), layer_ids)
        errors = relative_error(captured["hidden_states"], reference)
        assert len(errors) == len(layer_ids)
        assert max(errors) <= MAX_STATE_ERROR, f"row {entry['row_id']}: {errors}"


@pytest.mark.data
def test_rows_have_their_own_states_one_by_one_together_and_again(pipeline: Pipeline) -> None:
    alone, *others = pipeline.repeats
    assert len({tuple(tensors["token_ids"].tolist()) for tensors in alone}) == len(alone)
    for run in others:
        for expected, tensors in zip(alone, run, strict=True):
            assert tensors["token_ids"].tolist() == expected["token_ids"].tolist()
            assert max(relative_error(tensors["hidden_states"], expected["hidden_states"].float())) <= MAX_STATE_ERROR


def test_the_trainers_loader_reads_disjoint_complete_splits_of_the_stated_size(pipeline: Pipeline) -> None:
    folder = pipeline.out(Stage.CAPTURE) / "dataset"
    meta = json.loads((folder / "meta.json").read_text())
    index = pipeline.index()
    split_of = {entry["conversation"]: entry["split"] for entry in index}
    read: dict[str, list[tuple[int, ...]]] = {}
    for split in ("train", "val"):
        rows = ArrowDataset(
            max_len=4096,
            datapath=str(folder),
            on_missing="raise",
            train_ratio=split_ratio(meta["num_train"], meta["num_val"]),
            split=split,
            hidden_states_dtype=torch.float32,
        )
        read[split] = [tuple(rows[number]["input_ids"].tolist()) for number in range(len(rows))]
    expected = {split: [e for e in index if e["split"] == split] for split in read}
    assert {split: len(rows) for split, rows in read.items()} == {"train": meta["num_train"], "val": meta["num_val"]}
    assert {split: len(rows) for split, rows in read.items()} == {split: len(e) for split, e in expected.items()}
    stored = [tuple(row["input_ids"].tolist()) for row in load_from_disk(str(folder))]
    assert read["train"] + read["val"] == stored
    assert not set(read["train"]) & set(read["val"])
    assert all(split_of[entry["conversation"]] == entry["split"] for entry in index)


def test_the_trained_draft_is_accepted_on_prompts_that_training_never_saw(pipeline: Pipeline) -> None:
    suite = pipeline.job["stages"][5]["summary"]["suites"]["heldout"]
    trained, untrained = suite["trained"]["acceptance_length"], suite["untrained"]["acceptance_length"]
    assert pipeline.job["stages"][5]["summary"]["num_speculative_tokens"] == 3
    assert suite["trained"]["mode"] == suite["untrained"]["mode"] == "vllm"
    assert trained >= MIN_ACCEPTANCE_LENGTH
    assert trained >= MIN_GAIN * untrained


def test_validation_foretells_the_acceptance_length(pipeline: Pipeline) -> None:
    measured = pipeline.job["stages"][5]["summary"]["suites"]["heldout"]["trained"]["acceptance_length"]
    estimated = pipeline.job["stages"][4]["summary"]["estimated_acceptance_length"]
    assert estimated == pytest.approx(measured, rel=MAX_FORETELLING_ERROR)


@pytest.mark.slow  # another training, as long as the first
def test_a_draft_trained_on_other_rows_states_is_estimated_to_be_worse(pipeline: Pipeline, tmp_path: Path) -> None:
    folder = pipeline.out(Stage.CAPTURE) / "dataset"
    meta = json.loads((folder / "meta.json").read_text())
    rows = []
    for number, row in enumerate(load_from_disk(str(folder))):
        states = load_file(folder / "hidden_states" / f"hs_{number}.safetensors")["hidden_states"]
        rows.append(Row(row["input_ids"], row["loss_mask"], states))
    count = meta["num_train"]
    swapped = [*swap_auxiliary_states(rows[:count]), *swap_auxiliary_states(rows[count:])]
    assert all(torch.equal(a.states[:, -1], b.states[:, -1]) for a, b in zip(rows, swapped, strict=True))
    write_dataset(tmp_path / "capture" / "dataset", swapped[:count], swapped[count:], meta["layer_ids"])
    runner = StageRunner(tmp_path / "runs", pipeline.record.spec, tmp_path)
    runner.inputs.update(capture=tmp_path / "capture", vocab=pipeline.out(Stage.VOCAB))
    runner.digests["capture"] = pipeline.manifest(Stage.VOCAB).inputs["capture"]  # what its vocabulary was counted on
    control = runner.run(train)["estimated_acceptance_length"]
    estimated = pipeline.job["stages"][4]["summary"]["estimated_acceptance_length"]
    assert control <= estimated - MIN_CONTROL_DISTANCE


def test_every_file_of_every_stage_has_the_hash_of_its_manifest(pipeline: Pipeline) -> None:
    for stage in Stage:
        manifest = pipeline.manifest(stage)
        assert manifest.files
        for entry in manifest.files:
            content = (pipeline.out(stage) / entry.path).read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.size, entry.sha256)


def test_the_published_folder_loads_in_vllm_elsewhere_without_network(pipeline: Pipeline, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "draft"
    shutil.copytree(pipeline.draft, copy)
    settings = VerifierSettings.model_validate(
        {"model": str(TINY_VERIFIER), "device": "cpu", "mode": VerifierMode.DRAFT, "draft_path": copy}
    )
    log = tmp_path / "vllm.log"
    with running_verifier(settings, mark="test-elsewhere", log_path=log, timeout_s=300, environment=NO_NETWORK) as url:
        figures = asyncio.run(_ask(url, _held_out(pipeline)))
    assert figures["drafts"] > 0
    assert figures["acceptance_length"] >= MIN_GAIN


def test_the_published_config_names_no_path_of_this_machine(pipeline: Pipeline) -> None:
    for name in ("config.json", "README.md", "eyrie.json", "evaluation.json", "train_config.json"):
        text = (pipeline.draft / name).read_text(encoding="utf-8")
        assert str(TINY_VERIFIER.parent) not in text
        assert str(pipeline.store.root) not in text


def _said(pipeline: Pipeline, row_id: str) -> dict[str, Any]:
    answers = [answer for name, answer in pipeline.recording.answers.items() if name.endswith(f"-{row_id}")]
    assert len(answers) == 1, f"row {row_id} was asked for {len(answers)} times"
    return answers[0]


def _held_out(pipeline: Pipeline) -> list[list[dict[str, str]]]:
    lines = (pipeline.out(Stage.PREPARE) / "conversations.jsonl").read_text(encoding="utf-8").splitlines()
    return [row["messages"] for row in map(json.loads, lines) if row["split"] == "val"][:ASKED_PROMPTS]


async def _ask(url: str, conversations: list[list[dict[str, str]]]) -> dict[str, float]:
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        before = await settled_counters(http)
        for messages in conversations:
            body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 160}
            (await http.post("/v1/chat/completions", json=body)).raise_for_status()
        return acceptance(before, await settled_counters(http), 3)
