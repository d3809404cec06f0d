"""What a run decides before it trains: attention, library options, names, steps."""

import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from services.worker.stage_context import StageContext
from services.worker.stage_run import STORE_UNUSABLE
from services.worker.training.attention import choose_attention
from services.worker.training.launch import KILLED, RANKS, command, ending, environment, failure
from services.worker.training.library_config import library_config, split_ratio
from services.worker.training.main import main
from services.worker.training.prepare_run import prepare_run
from services.worker.training.resume_state import fingerprint
from services.worker.training.run_config import CONFIG_NAME, EVENTS_NAME, RunConfig
from services.worker.training.step_plan import StepPlan, plan_steps
from shared.errors import ArtifactStoreError, DivergedError, InternalError, StatusReason, UserError
from shared.verifier_config import public_model_name
from tests.unit.worker.training.conftest import Inputs


@pytest.mark.parametrize(
    ("asked", "device", "used"),
    [
        ("auto", "cpu", "sdpa"),
        ("auto", "cuda", "simple_flex_attention"),
        ("flex", "cuda", "simple_flex_attention"),
        ("eager", "cpu", "eager"),
    ],
)
def test_attention_is_what_works_and_says_why(asked: str, device: str, used: str) -> None:
    implementation, why = choose_attention(asked, device)
    assert implementation == used
    assert why


def test_flex_attention_on_a_cpu_is_the_users_error() -> None:
    with pytest.raises(UserError, match="no backward pass"):
        choose_attention("flex", "cpu")


def test_the_library_cuts_exactly_our_split() -> None:
    for count in range(2, 400):
        for val in range(1, count):
            assert int(count * split_ratio(count - val, val)) == count - val


def test_every_train_option_reaches_the_library(context: Callable[..., StageContext]) -> None:
    train: dict[str, Any] = {
        "epochs": 7,
        "max_steps": 11,
        "lr": 0.002,
        "scheduler": "linear",
        "warmup_ratio": 0.25,
        "pack_length": 96,
        "ttt_steps": 2,
        "ttt_step_loss_decay": 0.8,
        "num_workers": 2,
        "optimizer": "muon",
        "weight_decay": 0.03,
        "seed": 5,
        "attention": "eager",
        "dtype": "bfloat16",
    }
    flags = {"norm_before_residual": False, "norm_before_fc": False, "norm_output": False}
    flat = library_config(prepare_run(context(draft=flags, **train))).flatten()
    wanted = {
        "epochs": 7,
        "max_steps": 11,
        "lr": 0.002,
        "scheduler_type": "linear",
        "scheduler_warmup_ratio": 0.25,
        "total_seq_len": 96,
        "ttt_steps": 2,
        "ttt_step_loss_decay": 0.8,
        "num_workers": 2,
        "optimizer": "muon",
        "weight_decay": 0.03,
        "seed": 5,
        "draft_attn_impl": "eager",
        "hidden_states_dtype": "bfloat16",
        "loss_implementation": "eager",
        "target_layer_ids": [1, 3, 5],
        "on_missing": "raise",
        **flags,
    }
    assert {name: flat[name] for name in wanted} == wanted


def test_a_vocabulary_of_another_size_is_refused(context: Callable[..., StageContext]) -> None:
    with pytest.raises(InternalError, match="vocabulary files"):
        prepare_run(context(draft={"vocab_size": 40}))


def test_rows_longer_than_a_pack_are_reported(context: Callable[..., StageContext]) -> None:
    made = context(pack_length=32)
    prepare_run(made)
    assert "are longer than train.pack_length (32)" in made.report.stream.getvalue()


@pytest.mark.data
@pytest.mark.parametrize("changed", ["capture/dataset/rows.jsonl", "vocab/t2d.npy", "verifier/config.json"])
def test_a_resume_point_of_other_data_is_never_continued(
    context: Callable[..., StageContext], inputs: Inputs, tmp_path: Path, changed: str
) -> None:
    own = fingerprint(prepare_run(context()))
    assert fingerprint(prepare_run(context("again"))) == own
    assert fingerprint(prepare_run(context("slower", checkpoint_every_s=7))) == own
    assert fingerprint(prepare_run(context("seed", seed=7))) != own
    copy = tmp_path / "inputs"
    shutil.copytree(inputs.root, copy)
    with (copy / changed).open("ab") as file:
        file.write(b"\n")
    made = context("other")
    verifier = made.spec.verifier.model_copy(update={"model": str(copy / "verifier")})
    other = dataclasses.replace(
        made,
        spec=made.spec.model_copy(update={"verifier": verifier}),
        inputs={"capture": copy / "capture", "vocab": copy / "vocab"},
    )
    assert fingerprint(prepare_run(other)) != own


def test_the_published_name_of_the_verifier_is_never_a_path() -> None:
    assert public_model_name("moonshotai/Kimi-K2.5") == "moonshotai/Kimi-K2.5"
    assert public_model_name("/models/tiny-verifier/") == "tiny-verifier"


def test_steps_are_counted_for_each_epoch_and_end_at_max_steps() -> None:
    sizes = [3, 4, 3]
    assert plan_steps(lambda epoch: range(sizes[epoch]), 9, 3, None) == StepPlan(3, 10)
    assert plan_steps(lambda epoch: range(sizes[epoch]), 9, 3, 5) == StepPlan(2, 5)
    assert plan_steps(lambda epoch: range(sizes[epoch]), 9, 3, 7) == StepPlan(2, 7)
    assert plan_steps(lambda epoch: range(sizes[epoch]), 9, 3, 50) == StepPlan(3, 10)
    assert plan_steps(lambda epoch: range(sizes[epoch]), 10**6, 3, None) == StepPlan(3, 9)
    assert plan_steps(lambda epoch: range(sizes[epoch]), 10**6, 3, 5) == StepPlan(2, 5)


def test_torchrun_is_used_for_several_gpus_only(tmp_path: Any) -> None:
    assert RANKS not in command(tmp_path, 0, 300)
    assert RANKS not in command(tmp_path, 1, 300)
    several = command(tmp_path, 4, 300)
    assert several[several.index("--nproc-per-node") + 1] == "4"
    assert several[several.index("--shutdown-timeout") + 1] == "300", "torchrun would kill its ranks after 30 s"
    assert environment(("GPU-a", "GPU-b"))["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert environment(())["CUDA_VISIBLE_DEVICES"] == ""


def test_the_trainers_failure_keeps_its_reason() -> None:
    out_of_memory = failure({"reason": "oom_gpu", "message": "CUDA out of memory"})
    assert out_of_memory.reason is StatusReason.OOM_GPU
    assert isinstance(failure({"reason": "diverged", "message": "nan"}), DivergedError)
    assert isinstance(failure({"reason": "internal", "message": "?"}), InternalError)
    assert isinstance(failure({"reason": "artifact_store", "message": "full"}), ArtifactStoreError)


@pytest.mark.parametrize("status", KILLED)
def test_a_killed_rank_is_no_defect_whatever_the_ranks_say_that_miss_it(status: int) -> None:
    lost = {"reason": "internal", "message": "RuntimeError: Connection closed by peer"}
    assert ending(status, None).reason is ending(status, lost).reason is StatusReason.OOM_HOST
    assert ending(status, {"reason": "oom_gpu", "message": "?"}).reason is StatusReason.OOM_GPU
    assert ending(1, lost).reason is ending(1, None).reason is StatusReason.INTERNAL


def test_a_trainer_that_cannot_even_say_so_tells_of_a_full_disk_by_its_status(tmp_path: Path) -> None:
    run = RunConfig.model_construct(run=tmp_path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        patch.object(RunConfig, "model_validate_json", return_value=run),
        patch("services.worker.training.main.train", side_effect=full),
        patch("services.worker.training.main.die_with_parent"),
    ):
        (tmp_path / CONFIG_NAME).touch()
        assert main([str(tmp_path / CONFIG_NAME)]) == 1
        assert json.loads((tmp_path / EVENTS_NAME).read_text())["reason"] == "artifact_store"
        (tmp_path / EVENTS_NAME).unlink()
        (tmp_path / EVENTS_NAME).symlink_to("/dev/full")
        assert main([str(tmp_path / CONFIG_NAME)]) == STORE_UNUSABLE
    assert ending(STORE_UNUSABLE, None).reason is StatusReason.ARTIFACT_STORE


@pytest.mark.data
def test_a_vocabulary_that_was_counted_on_other_rows_is_refused(context: Callable[..., StageContext]) -> None:
    other = dataclasses.replace(context("other"), input_digests={"capture": "0" * 64})
    with pytest.raises(UserError, match="counted on other rows"):
        prepare_run(other)
