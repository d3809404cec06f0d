"""Resume points are complete or not there."""

import errno
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from services.worker.training.resume_state import Position, find_point, save_point


def write(run: Path, step: int, value: float = 0.0, best: Path | None = None) -> Path:
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, value or float(step))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 / (done + 1))
    position = Position(epoch=1, local_step=2, step=step, fingerprint="same")
    return save_point(run, position, dict(model.named_parameters()), [optimizer], [scheduler], best)


def test_the_furthest_point_of_all_attempts_is_used(tmp_path: Path) -> None:
    write(tmp_path / "new", 4)
    write(tmp_path / "old", 9)
    point = find_point([tmp_path / "new", tmp_path / "old", tmp_path / "absent"], "same")
    assert point is not None
    assert point.position.step == 9
    assert point.best_path() is None


def test_only_two_points_are_kept(tmp_path: Path) -> None:
    for step in (2, 10, 3, 11):
        write(tmp_path, step)
    assert sorted(path.name for path in (tmp_path / "resume").iterdir()) == ["step_10", "step_11"]


@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.pt", "position.json"])
def test_half_a_point_takes_no_room_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    write(tmp_path, 5)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    save = {"weights.safetensors": "save_file", "optimizer.pt": "torch.save", "position.json": "_seal"}[file]
    monkeypatch.setattr(f"services.worker.training.resume_state.{save}", Mock(side_effect=full))
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 6)
    assert [path.name for path in (tmp_path / "resume").iterdir()] == ["step_5"]


DAMAGE = [
    "truncated",
    "empty",
    "no manifest",
    "empty manifest",
    "unfinished name",
    "other run",
    "a file too few",
    "a link",
]


@pytest.mark.data
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_newest_point_is_passed_over(tmp_path: Path, damage: str) -> None:
    write(tmp_path, 5)
    newest = write(tmp_path, 6)
    if damage == "truncated":
        weights = newest / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-8])
    elif damage == "empty":
        shutil.rmtree(newest)
        newest.mkdir()
    elif damage == "no manifest":
        (newest / "manifest.json").unlink()
    elif damage == "empty manifest":
        (newest / "manifest.json").write_text('{"files": {}}')
    elif damage == "a file too few":
        (newest / "optimizer.pt").unlink()
    elif damage == "a link":
        (newest / "weights.safetensors").unlink()
        (newest / "weights.safetensors").symlink_to("gone")
    elif damage == "unfinished name":
        newest.rename(newest.with_name(".step_6.123"))
    else:
        shutil.rmtree(newest)
        position = Position(epoch=0, local_step=0, step=6, fingerprint="another")
        save_point(tmp_path, position, {"w": torch.ones(1)}, [], [], None)
    point = find_point([tmp_path], "same")
    assert point is not None
    assert point.position.step == 5


def test_optimizer_schedule_and_random_state_come_back(tmp_path: Path) -> None:
    best = tmp_path / "best.safetensors"
    best.write_bytes(b"weights")
    torch.manual_seed(7)
    write(tmp_path, 3, best=best)
    expected = torch.rand(1)
    point = find_point([tmp_path], "same")
    assert point is not None
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 / (done + 1))
    point.restore([optimizer], [scheduler])
    assert torch.equal(torch.rand(1), expected)
    assert optimizer.state[model.weight]["step"] == 1
    assert point.weights()["weight"].dtype is torch.float32
    kept = point.best_path()
    assert kept is not None
    assert kept.read_bytes() == b"weights"


@pytest.mark.data
@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.pt", "position.json", "best.safetensors"])
def test_one_flipped_bit_anywhere_in_the_newest_point_is_noticed(tmp_path: Path, name: str) -> None:
    best = tmp_path / "best.safetensors"
    best.write_bytes(b"weights")
    write(tmp_path, 5)
    path = write(tmp_path, 6, best=best) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # the best weights are a second name for the same bytes
    path.write_bytes(content)
    point = find_point([tmp_path], "same")
    assert point is not None
    assert point.position.step == 5


@pytest.mark.data
@pytest.mark.parametrize("stray", ["9", "step_", "step_9x", "step_-9", "interrupted"])
def test_folders_of_other_names_are_no_points_however_high_their_number(tmp_path: Path, stray: str) -> None:
    write(tmp_path, 5)
    (tmp_path / "resume" / stray).mkdir()
    (tmp_path / "resume" / "step_99").touch()
    point = find_point([tmp_path], "same")
    assert point is not None
    assert point.position.step == 5


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


@pytest.mark.data
@pytest.mark.parametrize("moment", ["save_file", "torch.save", "_link", "_sync", "_seal"])
def test_a_save_that_is_killed_at_any_moment_leaves_the_point_before_it(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = tmp_path / "best.safetensors"
    best.write_bytes(b"weights")
    write(tmp_path, 5, best=best)

    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(f"services.worker.training.resume_state.{moment}", kill)
        with pytest.raises(Killed):
            write(tmp_path, 6, best=best)
    point = find_point([tmp_path], "same")
    assert point is not None
    assert point.position.step == 5
    write(tmp_path, 7, best=best)
    assert sorted(path.name for path in (tmp_path / "resume").iterdir()) == ["step_5", "step_7"]


@pytest.mark.data
def test_every_point_damaged_means_from_the_beginning(tmp_path: Path) -> None:
    for step in (5, 6):
        (write(tmp_path, step) / "position.json").write_text("{}")
    assert find_point([tmp_path], "same") is None
