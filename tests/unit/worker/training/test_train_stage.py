"""The stage with its real trainer process: drafts, records, resume after SIGTERM and after SIGKILL."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from services.worker.draft_folder import check_draft_folder
from services.worker.evaluation.offline import estimate_acceptance
from services.worker.stage_context import StageContext
from services.worker.stages import train
from services.worker.training.launch import command, environment
from services.worker.training.prepare_run import prepare_run
from services.worker.training.row_index import learnable_rows
from services.worker.training.run_config import CONFIG_NAME, EVENTS_NAME, RunConfig
from shared.errors import DivergedError
from tests.support import synthetic_rows as rows
from tests.unit.worker.training.conftest import Inputs

pytestmark = pytest.mark.slow

Context = Callable[..., StageContext]
TOLERANCE = 1e-4  # relative L2 between a resumed and an uninterrupted run


def start(config: RunConfig) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(config.run / CONFIG_NAME, 0, 60), env=environment(()))


def wait_for(config: RunConfig, condition: Callable[[dict[str, Any]], bool], limit_s: float = 180) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        path = config.run / EVENTS_NAME
        lines = path.read_text().splitlines()[:-1] if path.exists() else []
        if any(condition(json.loads(line)) for line in lines):
            return
        time.sleep(0.02)
    raise AssertionError("the trainer did not get there")


def distance(one: Path, other: Path) -> float:
    a, b = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    pairs = [(a[name].double(), b[name].double()) for name in a if a[name].is_floating_point()]
    difference = sum(float((x - y).square().sum()) for x, y in pairs)
    return float((difference / sum(float(x.square().sum()) for x, _ in pairs)) ** 0.5)


def test_a_run_ends_with_checked_drafts_and_complete_records(context: Context, inputs: Inputs) -> None:
    made = context(epochs=8)
    summary = train.run(made)
    record = json.loads((made.out / "train_config.json").read_text())
    assert record["rows"] == {"train": 60, "val": 10}
    assert record["attention"]["used"] == "sdpa"
    assert summary["steps"] == record["steps"] > 0
    assert summary["accounting"] == {"unit": "rows", "taken": 70, "kept": 70, "rejected": {}}
    assert str(inputs.root) not in json.dumps(record)
    lines = [json.loads(line) for line in (made.out / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["split"] == "val"] == list(range(8))
    assert [line["step"] for line in lines if line["split"] == "train"] == list(range(1, summary["steps"] + 1))
    told = made.report.stream.getvalue()
    assert '"type": "checkpoint"' in told
    assert f'"done": {summary["steps"]}' in told

    trained = estimate_acceptance(made.out / "draft", inputs.verifier, inputs.dataset, 3)
    untrained = estimate_acceptance(made.out / "untrained", inputs.verifier, inputs.dataset, 3)
    assert untrained["acceptance_length"] < 1.2
    assert trained["acceptance_length"] > 2.0
    # All validation tokens are in the draft vocabulary here, so that both ways of counting agree.
    assert record["vocabulary_coverage_val"] == 1.0
    assert trained["acceptance_length"] == pytest.approx(summary["estimated_acceptance_length"], abs=0.01)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_resumed_run_ends_like_an_uninterrupted_one(context: Context, how: signal.Signals) -> None:
    whole = context("whole", checkpoint_every_s=1)
    train.run(whole)
    first = prepare_run(context("first", checkpoint_every_s=1))
    process = start(first)
    if how is signal.SIGTERM:
        # In the middle of the second epoch.
        wait_for(first, lambda event: event.get("step", 0) >= 14)
    else:
        wait_for(first, lambda event: event["type"] == "checkpoint" and event["step"] >= 6)
    os.kill(process.pid, how)
    assert process.wait(60) == (143 if how is signal.SIGTERM else -signal.SIGKILL)

    second = context("second", previous=(first.run.parent,), checkpoint_every_s=1)
    summary = train.run(second)
    assert summary["resumed_from"] > 0
    assert distance(whole.out / "draft", second.out / "draft") < TOLERANCE
    assert distance(whole.out / "untrained", second.out / "untrained") == 0
    steps = [json.loads(line)["step"] for line in (second.out / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == list(range(1, summary["steps"] + 1))


def test_max_steps_ends_the_run_in_mid_epoch(context: Context) -> None:
    made = context(max_steps=14, epochs=10)
    summary = train.run(made)
    assert (summary["steps"], summary["last_epoch"]) == (14, 1)


@pytest.mark.data
def test_rows_that_are_cut_off_or_never_reached_are_in_the_books(context: Context) -> None:
    made = context(max_steps=2, epochs=3, pack_length=24)
    books = train.run(made)["accounting"]
    assert books["taken"] == 70
    assert books["kept"] >= 10 - books["rejected"]["cut_off"]
    assert books["rejected"]["cut_off"] == sum(
        not able for part in learnable_rows(made.inputs["capture"] / "dataset", 24).values() for able in part
    )
    assert books["rejected"]["cut_off"] > 0
    assert books["rejected"]["not_reached"] > 0
    assert json.loads((made.out / "train_config.json").read_text())["accounting"] == books


@pytest.mark.data
def test_a_run_that_overfits_publishes_its_best_epoch_and_keeps_its_last_beside_it(
    context: Context, inputs: Inputs, tmp_path: Path
) -> None:
    few, held_out = rows.made_rows(inputs.verifier, 8, seed=1), rows.made_rows(inputs.verifier, 10, seed=2)
    dataset = rows.write_dataset(tmp_path / "capture" / "dataset", few, held_out, [*rows.AUX_LAYERS, rows.LAYERS])
    rows.write_vocabulary(tmp_path / "vocab", few, held_out, rows.VOCAB, 56)
    made = context(epochs=10, lr=0.02, scheduler="none")
    made.inputs.update(capture=tmp_path / "capture", vocab=tmp_path / "vocab")  # type: ignore[attr-defined]
    train.run(made)
    record = json.loads((made.out / "train_config.json").read_text())
    best, last = record["best"], record["last"]
    assert best["epoch"] < last["epoch"] == 9
    assert record["published"].startswith("best by validation")
    lines = [json.loads(line) for line in (made.out / "metrics.jsonl").read_text().splitlines()]
    validated = {line["epoch"]: line["values"] for line in lines if line["split"] == "val"}
    for folder, result in (("draft", best), ("last", last)):
        assert result["metrics"] == validated[result["epoch"]]
        check_draft_folder(made.out / folder, json.loads((inputs.verifier / "config.json").read_text()))
        measured = estimate_acceptance(made.out / folder, inputs.verifier, dataset, 3)["acceptance_length"]
        uncorrected = 1 + sum(result["metrics"][f"full_acc_{step}"] for step in range(3))
        assert measured <= uncorrected + 0.01  # tokens outside of the draft's vocabulary are misses here
    lengths = {epoch: values["estimated_acceptance_length"] for epoch, values in validated.items()}
    assert lengths[best["epoch"]] == max(lengths.values()) > lengths[last["epoch"]]
    assert distance(made.out / "draft", made.out / "last") > 0


def test_a_loss_that_is_not_finite_is_diverged_and_publishes_nothing(context: Context, inputs: Inputs) -> None:
    made = context(hidden_noise=10.0, lr=1.0, scheduler="none", max_steps=3, ttt_step_loss_decay=1.0)
    poison(made, inputs)
    with pytest.raises(DivergedError):
        train.run(made)
    assert not (made.out / "draft").exists()


def poison(made: StageContext, inputs: Inputs) -> None:
    """Give the stage a copy of the dataset in which every row has a state that is not finite."""
    import shutil

    from safetensors.torch import save_file

    copy = made.work / "capture"
    shutil.copytree(inputs.root / "capture", copy)
    for path in (copy / "dataset" / "hidden_states").iterdir():
        tensors = load_file(path)
        tensors["hidden_states"][-2] = torch.nan
        save_file(tensors, path)
    made.inputs["capture"] = copy  # type: ignore[index]
