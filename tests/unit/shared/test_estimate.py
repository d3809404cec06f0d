"""Estimates against what was measured: the shipped verifier's draft and demo, and Kimi-K2.5's published figures."""

import pytest

from shared.estimate import (
    captures_inline,
    draft_parameters,
    estimate_disk,
    estimate_tokens,
    state_bytes_per_token,
    train_memory,
    verifier_starts,
)
from shared.presets import TINY_VERIFIER, resolve
from shared.schemas.job import Stage, now
from shared.schemas.manifest import FileEntry, Manifest
from shared.schemas.registry import DatasetFile, DatasetRecord
from shared.verifier_config import VerifierConfig, read_verifier_config

pytestmark = pytest.mark.data
KIMI = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "vocab_size": 163840,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
}


def kimi() -> VerifierConfig:
    return VerifierConfig(num_hidden_layers=61, hidden_size=7168, vocab_size=163840, raw=KIMI)


def spec(preset: str = "tiny", **changes):
    return resolve({"preset": preset, "data": {"dataset": "ds_x", **changes.pop("data", {})}, **changes})


def dataset(rows: int, size: int, **changes) -> DatasetRecord:
    file = DatasetFile(path="files/0.jsonl", name="data", rows=rows, bytes=size, sha256="0" * 64)
    fields = {"id": "ds_x", "name": "x", "rows": rows, "bytes": size, "sha256": "0" * 64, "files": [file]}
    return DatasetRecord(created_at=now(), **fields | changes)


def finished(stage: Stage, summary: dict, files: list[FileEntry]) -> Manifest:
    fields = {"key": "k", "token": "t", "job_id": "j", "root": "r", "inputs": {}, "parameters": {}, "seconds": 0}
    return Manifest(stage=stage, files=files, summary=summary, created_at=now(), **fields)


def test_the_kimi_draft_and_its_states_have_the_published_sizes() -> None:
    job = spec("kimi-k2.5")
    parameters = draft_parameters(job.draft, kimi(), job.capture.layer_ids)
    assert parameters.total == pytest.approx(2.37e9, rel=0.005)
    assert parameters.trained == pytest.approx(0.96e9, rel=0.005)
    assert state_bytes_per_token(job, kimi()) == 57_344


@pytest.mark.parametrize(("pack_length", "measured_gib"), [(2048, 34.4), (8192, 44.7)])
def test_the_memory_of_the_kimi_draft_is_what_a_gpu_showed(pack_length: int, measured_gib: float) -> None:
    job = spec("kimi-k2.5", train={"gpus": 1, "pack_length": pack_length})
    memory = train_memory(job, kimi(), draft_parameters(job.draft, kimi(), job.capture.layer_ids))
    assert memory.likely == pytest.approx(measured_gib * 1024**3, rel=0.05)
    assert memory.least < measured_gib * 1024**3 < memory.most


def test_the_shipped_drafts_parameters_are_counted_to_the_last() -> None:
    """Its exported checkpoint has 1,674,752 bytes of float32 weights beside the two vocabulary maps."""
    job = spec()
    assert draft_parameters(job.draft, read_verifier_config(TINY_VERIFIER), None).total * 4 == 1_674_752


def test_the_demos_size_is_foretold_from_its_dataset() -> None:
    """300 prompts of 22 kB in all made 60 MB of hidden states."""
    job, config = spec(), read_verifier_config(TINY_VERIFIER)
    tokens = estimate_tokens(job, dataset(300, 22_000))
    needed = estimate_disk(Stage.GENERATE, job, config, tokens, 22_000)
    assert needed.least < 60_000_000 < needed.most
    assert needed.likely == pytest.approx(60_000_000, rel=0.25)


def test_what_earlier_stages_counted_takes_the_place_of_guesses() -> None:
    job = spec(data={"limit": 50})
    file = FileEntry(path="conversations.jsonl", size=30_000, sha256="0" * 64)
    prepared = finished(Stage.PREPARE, {"accounting": {"unit": "rows", "taken": 90, "kept": 40}}, [file])
    assert estimate_tokens(job, dataset(90, 9000)).rows == 50
    assert estimate_tokens(job, dataset(90, 9000), prepared).rows == 40
    counted = {"rows": 38, "prompt_tokens": 1000, "answer_tokens": 500}
    exact = estimate_tokens(job, dataset(90, 9000), prepared, finished(Stage.GENERATE, counted, []))
    assert exact.tokens.least == exact.tokens.most == 1000 + 500 - 38
    assert (exact.basis, exact.assumptions) == ("generate", [])


def test_no_estimate_is_longer_than_the_rows_may_be() -> None:
    tokens = estimate_tokens(spec(), dataset(3, 10**9)).tokens
    assert tokens.least == tokens.likely == tokens.most == 3 * 256


@pytest.mark.parametrize(
    ("changes", "inline"),
    [
        ({"capture": {"mode": "inline"}}, True),
        ({"capture": {"mode": "prefill"}}, False),
        ({"capture": {"mode": "auto"}}, True),
        ({"capture": {"mode": "auto"}, "train": {"gpus": 1}}, False),
        ({"capture": {"mode": "inline"}, "data": {"generate": False}}, False),
    ],
)
def test_states_are_counted_in_the_stage_that_writes_them(changes: dict, inline: bool) -> None:
    job, config = spec(**changes), read_verifier_config(TINY_VERIFIER)
    assert captures_inline(job) == inline
    tokens = estimate_tokens(job, dataset(100, 10_000))
    states = tokens.tokens.likely * state_bytes_per_token(job, config)
    sizes = [estimate_disk(stage, job, config, tokens, 10_000).likely for stage in (Stage.GENERATE, Stage.CAPTURE)]
    assert [size > states for size in sizes] == [inline, not inline]


def test_every_load_of_the_verifier_is_counted() -> None:
    managed = {"verifier": {"managed": {}}}
    assert verifier_starts(spec(evaluate={"mode": "vllm", "baseline": "none"})) == 1
    assert verifier_starts(spec(evaluate={"mode": "vllm", "baseline": "vllm"}, **managed)) == 3
    assert verifier_starts(spec(evaluate={"mode": "offline", "baseline": "vllm"})) == 0
    offline = spec(evaluate={"mode": "offline"}, **managed)
    assert verifier_starts(offline, {Stage.PREPARE, Stage.GENERATE}) == 1
    assert verifier_starts(offline, {Stage.PREPARE, Stage.GENERATE, Stage.CAPTURE}) == 0
