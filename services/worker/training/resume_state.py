"""Resume points: everything a run needs to go on as if it had never stopped, in float32.

A point is a folder `step_N` with `weights.safetensors` (what is trained), `best.safetensors` (the best so far, once
there is one), `optimizer.pt` (optimizers, schedulers, random states), `position.json` and, written last,
`manifest.json` with the SHA-256 of the others. It is written under a temporary name, flushed to disk, and renamed: a
folder called `step_N` that verifies is complete, everything else is ignored.
"""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from safetensors.torch import load_file, save_file

from services.worker.training.run_config import METRICS_NAME, RESUME_NAME, EpochResult, RunConfig

WEIGHTS, BEST, OPTIMIZER = "weights.safetensors", "best.safetensors", "optimizer.pt"
POSITION, MANIFEST = "position.json", "manifest.json"
KEPT_POINTS = 2
CHUNK = 1 << 20


class Position(BaseModel):
    """Where a run stands: `local_step` batches of `epoch` are trained, `step` in all."""

    epoch: int
    local_step: int
    step: int
    fingerprint: str
    best: EpochResult | None = None
    last: EpochResult | None = None
    seconds: float = 0.0
    tokens: int = 0
    samples: int = 0


@dataclass(frozen=True)
class ResumePoint:
    """A complete, verified resume point."""

    folder: Path
    position: Position

    @property
    def metrics(self) -> Path:
        """The metrics file of the run that wrote the point."""
        return self.folder.parent.parent / METRICS_NAME

    def weights(self) -> dict[str, torch.Tensor]:
        """Trained parameters by name, float32, on the CPU."""
        return load_file(self.folder / WEIGHTS)

    def best_path(self) -> Path | None:
        """File of the best weights so far, or None before the first validation."""
        path = self.folder / BEST
        return path if path.exists() else None

    def restore(self, optimizers: Sequence[Any], schedulers: Sequence[Any]) -> None:
        """Load optimizer, scheduler and random states, in place."""
        state = torch.load(self.folder / OPTIMIZER, weights_only=True, map_location="cpu")
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for scheduler, saved in zip(schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        _set_random_states(state["random"])


def fingerprint(run: RunConfig) -> str:
    """Identity of a run's mathematics and data: a point of another run never continues this one."""
    document = run.model_dump(
        mode="json",
        include={"data", "shape", "layer_ids", "num_train", "num_val", "dtype", "train", "draft"},
    )
    document["train"].pop("checkpoint_every_s")
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def save_point(
    run_folder: Path,
    position: Position,
    weights: Mapping[str, torch.Tensor],
    optimizers: Sequence[Any],
    schedulers: Sequence[Any],
    best: Path | None,
) -> Path:
    """Write a resume point and drop all but the newest two; returns its folder.

    Raises:
        OSError, or what torch and safetensors make of it: the disk is full or read only; the earlier points are still
            whole then, and nothing is left of this one.
    """
    parent = run_folder / RESUME_NAME
    target = parent / f"step_{position.step}"
    temporary = parent / f".step_{position.step}.{os.getpid()}"
    for unfinished in parent.glob(".step_*"):  # of a save that was killed
        shutil.rmtree(unfinished, ignore_errors=True)
    temporary.mkdir(parents=True)
    state = {
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in schedulers],
        "random": _random_states(),
    }
    try:
        save_file(
            {name: tensor.detach().float().cpu().contiguous() for name, tensor in weights.items()},
            temporary / WEIGHTS,
        )
        with _without_checksums():
            torch.save(state, temporary / OPTIMIZER)
        if best is not None:
            _link(best, temporary / BEST)
        (temporary / POSITION).write_text(position.model_dump_json())
        _seal(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # half a point on a full volume is space lost
        raise
    # A point of the same step that is already there holds the same weights, perhaps before their validation.
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    _sync(parent)
    _drop_old(parent)
    return target


def find_point(run_folders: Iterable[Path], wanted: str) -> ResumePoint | None:
    """Return the furthest complete point with that fingerprint among run folders; damaged ones are skipped."""
    candidates = [
        (int(folder.name.removeprefix("step_")), folder)
        for run_folder in run_folders
        for folder in (run_folder / RESUME_NAME).glob("step_*")
        if folder.name.removeprefix("step_").isdigit()
    ]
    for _, folder in sorted(candidates, key=lambda item: item[0], reverse=True):
        position = _verified(folder)
        if position is not None and position.fingerprint == wanted:
            return ResumePoint(folder, position)
    return None


def _verified(folder: Path) -> Position | None:
    try:
        expected = json.loads((folder / MANIFEST).read_text())["files"]
        if not {WEIGHTS, OPTIMIZER, POSITION} <= expected.keys():
            return None
        if any(_sha256(folder / name) != digest for name, digest in expected.items()):
            return None
        return Position.model_validate_json((folder / POSITION).read_text())
    except (OSError, ValueError, KeyError, AttributeError, TypeError, ValidationError):
        return None


@contextmanager
def _without_checksums() -> Iterator[None]:
    """Save without torch's CRC-32, which takes longer than the writing; the seal holds a SHA-256 of every file."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _seal(folder: Path) -> None:
    """Flush every file, then write and flush the manifest."""
    digests = {}
    for path in sorted(folder.iterdir()):
        _sync(path)
        digests[path.name] = _sha256(path)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": digests}, indent=1))
    _sync(manifest)
    _sync(folder)


def _drop_old(parent: Path) -> None:
    points = [path for path in parent.glob("step_*") if path.name.removeprefix("step_").isdigit()]
    points.sort(key=lambda path: int(path.name.removeprefix("step_")))
    for folder in points[:-KEPT_POINTS]:
        shutil.rmtree(folder, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    """The best weights do not change any more: a second name for the same bytes, or a copy across filesystems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _random_states() -> dict[str, Any]:
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, [int(key) for key in keys], position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
    }


def _set_random_states(states: Mapping[str, Any]) -> None:
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
