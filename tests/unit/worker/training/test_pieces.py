"""Small parts of training: noise, acceptance arithmetic, events, verifier tensors, a result's summary."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from services.worker.stages.train import summary
from services.worker.training.acceptance import acceptance_length, expected_acceptance, full_accuracies
from services.worker.training.events import EventWriter, keep_earlier_metrics, read_lines
from services.worker.training.hidden_noise import HiddenNoise
from services.worker.training.run_config import EVENTS_NAME, METRICS_NAME, EpochResult, RunResult
from services.worker.training.verifier_weights import load_verifier_tensors
from shared.errors import UserError
from shared.schemas.accounting import Accounting
from tests.unit.worker.training.conftest import Inputs

NAMES = ["embed_tokens.weight", "lm_head.weight", "model.norm.weight"]


def batch() -> dict[str, Any]:
    return {"hidden_states": torch.ones(1, 5, 6), "verifier_last_hidden_states": torch.ones(1, 5, 2)}


def test_noise_touches_auxiliary_states_of_training_batches_only() -> None:
    model = torch.nn.Linear(1, 1)
    noisy = HiddenNoise(0.5, seed=1, rank=0)(model.train(), batch(), 3)
    change = noisy["hidden_states"] - 1
    assert 0 < change.abs().max() <= 0.5
    assert change.std() > 0.1
    assert torch.equal(noisy["verifier_last_hidden_states"], torch.ones(1, 5, 2))
    quiet = HiddenNoise(0.5, seed=1, rank=0)(model.eval(), batch(), 3)
    assert torch.equal(quiet["hidden_states"], torch.ones(1, 5, 6))


def test_noise_depends_on_seed_step_and_rank_only() -> None:
    model = torch.nn.Linear(1, 1).train()

    def draw(seed: int, step: int, rank: int) -> torch.Tensor:
        noisy: torch.Tensor = HiddenNoise(0.5, seed, rank)(model, batch(), step)["hidden_states"]
        return noisy

    assert torch.equal(draw(1, 3, 0), draw(1, 3, 0))
    for other in [(2, 3, 0), (1, 4, 0), (1, 3, 1)]:
        assert not torch.equal(draw(1, 3, 0), draw(*other))


def test_tokens_outside_of_the_draft_vocabulary_count_as_misses() -> None:
    accepted = expected_acceptance([0.8, 0.6], coverage=0.5)
    assert accepted == pytest.approx([0.4, 0.15])
    assert acceptance_length(accepted) == pytest.approx(1.55)
    assert acceptance_length([]) == 1.0
    assert full_accuracies({"full_acc_0": 0.8, "full_acc_1": 0.6, "cond_acc_0": 0.8}) == [0.8, 0.6]


def test_metrics_survive_a_resume_without_repetition(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = EventWriter(tmp_path / "a", active=True)
    for step in (1, 2, 3):
        first.metrics("train", step, 0, {"loss": float(step)})
    with (tmp_path / "a" / METRICS_NAME).open("a") as file:
        file.write('{"step": 4, "cut by a ki')
    keep_earlier_metrics(tmp_path / "a" / METRICS_NAME, tmp_path / "b", 2)
    EventWriter(tmp_path / "b", active=True).metrics("train", 3, 0, {"loss": float("nan")})
    records = list(read_lines(tmp_path / "b" / METRICS_NAME))
    assert [record["step"] for record in records] == [1, 2, 3]
    assert records[-1]["values"]["loss"] is None


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    EventWriter(tmp_path, active=False).metrics("train", 1, 0, {"loss": 1.0})
    assert not (tmp_path / EVENTS_NAME).exists()


def test_a_decoy_head_with_a_shorter_name_is_not_taken(inputs: Inputs) -> None:
    tensors = load_verifier_tensors(NAMES, str(inputs.verifier))
    assert set(tensors) == set(NAMES)
    assert tensors["lm_head.weight"].abs().sum() > 0


def write_checkpoint(folder: Path, weight_map: dict[str, str], tied: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    here = {key: torch.ones(2, 2) for key, shard in weight_map.items() if shard == "one.safetensors"}
    save_file(here, folder / "one.safetensors")
    return folder


def test_a_tied_head_is_left_to_the_embedding(tmp_path: Path) -> None:
    shards = {"model.embed_tokens.weight": "one.safetensors", "model.norm.weight": "one.safetensors"}
    tied = write_checkpoint(tmp_path / "tied", shards, tied=True)
    assert "lm_head.weight" not in load_verifier_tensors(NAMES, str(tied))
    untied = write_checkpoint(tmp_path / "untied", shards)
    with pytest.raises(UserError, match=r"no lm_head\.weight"):
        load_verifier_tensors(NAMES, str(untied))


@pytest.mark.parametrize("shard", ["absent.safetensors", "../outside.safetensors", "/etc/passwd"])
def test_a_shard_that_is_missing_or_outside_is_refused(tmp_path: Path, shard: str) -> None:
    shards = {
        "model.embed_tokens.weight": "one.safetensors",
        "model.norm.weight": "one.safetensors",
        "lm_head.weight": shard,
    }
    (tmp_path / "outside.safetensors").write_bytes(b"")
    folder = write_checkpoint(tmp_path / "v", shards)
    with pytest.raises(UserError, match=r"not there|does not lie"):
        load_verifier_tensors(NAMES, str(folder))


@pytest.mark.parametrize(("peak", "shown"), [(None, {}), (7, {"peak_gpu_bytes": 7})])
def test_the_peak_of_gpu_memory_stands_in_the_summary_of_a_training_on_gpus(peak: int | None, shown: dict[str, int]):
    epoch = EpochResult(epoch=0, step=1, metrics={"loss": 1.0, "estimated_acceptance_length": 2.0})
    counts = {"steps": 1, "total_steps": 1, "resumed_from": 0, "tokens": 1, "samples": 1, "world_size": 1}
    rows = Accounting(unit="rows", taken=1, kept=1)
    figures = {"seconds": 1.0, "peak_host_bytes": 1, "parameters": {"saved": 1}, "rows": rows, "versions": {}}
    result = RunResult(best=epoch, last=epoch, peak_gpu_bytes=peak, **counts, **figures)
    found = summary(result)
    assert {name: found[name] for name in found if name.startswith("peak")} == shown
