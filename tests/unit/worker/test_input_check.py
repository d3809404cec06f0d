"""Inputs of a stage are verified byte for byte, and refuse to be mixed; what is whole of a damaged output is kept."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from services.worker.input_check import DamagedInput, check_inputs
from services.worker.stage_run import StageRun, StoredOutput
from shared.errors import ArtifactStoreError
from shared.schemas.job import Stage, now
from shared.schemas.manifest import FileEntry, Manifest
from tests.support.stage_runs import job_spec

pytestmark = pytest.mark.data
FILES = {"report.json": b"{}", "dataset/hidden_states/hs_0.safetensors": b"states"}


def made(root: Path, stage: Stage, inputs: dict[str, str]) -> tuple[StoredOutput, Manifest]:
    """A finished stage with two files."""
    folder = root / stage / "out"
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    entries = [
        FileEntry(path=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in FILES.items()
    ]
    fields: dict[str, Any] = {"key": "k", "token": "t", "job_id": "j", "root": "r", "parameters": {}, "seconds": 1}
    manifest = Manifest(stage=stage, inputs=inputs, files=entries, created_at=now(), **fields)
    (root / f"{stage}.json").write_text(manifest.model_dump_json())
    return StoredOutput(manifest=root / f"{stage}.json", folder=folder), manifest


def stage_run(root: Path, stage: Stage, outputs: dict[str, tuple[StoredOutput, Manifest]], **digests: str) -> StageRun:
    return StageRun(
        job_id="job_1",
        stage=stage,
        token="run_1",
        spec=job_spec(root),
        inputs={name: output.folder for name, (output, _) in outputs.items()},
        input_digests={name: manifest.digest() for name, (_, manifest) in outputs.items()} | digests,
        upstream={name: output for name, (output, _) in outputs.items()},
        out=root,
        work=root,
        previous=[],
        exchange=root,
    )


def chain(root: Path, **changed: str) -> dict[str, tuple[StoredOutput, Manifest]]:
    """capture, and vocab that was made from it; `changed` are inputs of vocab."""
    capture = made(root, Stage.CAPTURE, {"verifier": "v"})
    vocab = made(root, Stage.VOCAB, {"capture": capture[1].digest(), "verifier": "v", **changed})
    return {"capture": capture, "vocab": vocab}


def test_whole_inputs_that_belong_together_pass(tmp_path: Path) -> None:
    outputs = chain(tmp_path)
    found = check_inputs(stage_run(tmp_path, Stage.TRAIN, outputs, verifier="v"))
    assert found == {name: manifest for name, (_, manifest) in outputs.items()}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes instead of"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"), "has other content"),
    ],
)
def test_a_file_that_is_not_what_it_was_is_named_with_its_stage(tmp_path: Path, name: str, damage, what: str) -> None:
    outputs = chain(tmp_path)
    damage(outputs["capture"][0].folder / name)
    with pytest.raises(DamagedInput, match=what) as caught:
        check_inputs(stage_run(tmp_path, Stage.TRAIN, outputs, verifier="v"))
    assert (caught.value.name, caught.value.where) == ("capture", f"capture/{name}")


def test_stages_that_read_no_states_do_not_hash_them_but_miss_them(tmp_path: Path) -> None:
    outputs = chain(tmp_path)
    states = outputs["capture"][0].folder / "dataset/hidden_states/hs_0.safetensors"
    states.write_bytes(b"STATES")
    run = stage_run(tmp_path, Stage.PUBLISH, outputs)
    check_inputs(run)
    states.unlink()
    with pytest.raises(DamagedInput, match="is missing"):
        check_inputs(run)


@pytest.mark.parametrize(
    ("changed", "digests", "message"),
    [
        ({"capture": "0" * 64}, {}, "vocab was made from another capture"),
        ({"verifier": "other"}, {"verifier": "v"}, "vocab was made from another verifier"),
        ({"verifier": "other"}, {}, "different verifiers"),
    ],
)
def test_inputs_made_from_different_things_are_not_mixed(
    tmp_path: Path, changed: dict[str, str], digests: dict[str, str], message: str
) -> None:
    run = stage_run(tmp_path, Stage.TRAIN, chain(tmp_path, **changed), **digests)
    with pytest.raises(ArtifactStoreError, match=message):
        check_inputs(run)


def test_another_draft_to_compare_with_may_come_from_anywhere(tmp_path: Path) -> None:
    outputs = chain(tmp_path)
    outputs["compare"] = made(tmp_path / "other", Stage.PUBLISH, {"capture": "1" * 64, "verifier": "w"})
    check_inputs(stage_run(tmp_path, Stage.EVALUATE, outputs, verifier="v"))


def test_a_manifest_that_was_replaced_is_refused(tmp_path: Path) -> None:
    outputs = chain(tmp_path)
    run = stage_run(tmp_path, Stage.TRAIN, outputs, verifier="v")
    document = json.loads(outputs["vocab"][0].manifest.read_text())
    document["parameters"] = {"vocab_size": 5}
    outputs["vocab"][0].manifest.write_text(json.dumps(document))
    with pytest.raises(ArtifactStoreError, match="not the one"):
        check_inputs(run)
    outputs["vocab"][0].manifest.unlink()
    with pytest.raises(ArtifactStoreError, match="not the one"):
        check_inputs(run)
