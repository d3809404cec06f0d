"""What is exported says everything that a loader needs, fits its own tensors, and names no place on this machine."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from speculators.models.eagle3 import Eagle3DraftModel
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from services.worker.draft_folder import check_draft_folder
from services.worker.evaluation.offline import load_draft
from services.worker.stage_context import StageContext
from services.worker.stages import publish
from services.worker.training import verifier_weights
from services.worker.training.export import export_draft
from shared.draft_shape import draft_shape, parameter_counts
from shared.schemas.spec import DraftSpec
from tests.support import synthetic_rows as rows
from tests.unit.worker.training.conftest import Inputs, verifier_document

pytestmark = pytest.mark.data

ROPE = {
    "rope_type": "yarn",
    "rope_theta": 50000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def exported(verifier: Path, folder: Path, **fields: Any) -> dict[str, Any]:
    """Build an untrained draft as the trainer does, export it, and return its decoder's configuration."""
    document = json.loads((verifier / "config.json").read_text())
    text = document["text_config"]
    spec = DraftSpec(vocab_size=40, **fields)
    shape = draft_shape(spec, document)
    verifier_weights.install()
    t2d = torch.zeros(text["vocab_size"], dtype=torch.bool)
    t2d[:40] = True
    model = Eagle3DraftModel.from_training_args(
        LlamaConfig.from_dict(dict(shape)),
        t2d=t2d,
        d2t=torch.zeros(40, dtype=torch.int64),
        draft_vocab_size=40,
        target_layer_ids=list(rows.AUX_LAYERS),
        verifier_name_or_path=str(verifier),
        norm_before_residual=True,
        norm_before_fc=True,
        norm_output=True,
        ttt_steps=3,
        draft_attn_impl="sdpa",
    )
    export_draft(model, folder, dtype="float32", shape=shape, verifier_name="v")
    check = check_draft_folder(folder, document)
    counted = parameter_counts(shape, spec.vocab_size, len(rows.AUX_LAYERS))
    counted["heads"] //= 2  # the verifier's own copy is not exported
    norms = check.parameters - sum(counted.values())
    assert 0 < norms < 10 * text["hidden_size"]
    decoder: dict[str, Any] = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    return decoder


def test_hidden_96_with_4_heads_of_32_has_tensors_that_agree_with_its_config(tmp_path: Path) -> None:
    verifier = rows.write_verifier(tmp_path / "verifier", hidden=96)
    decoder = exported(verifier, tmp_path / "draft", num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    assert (decoder["hidden_size"], decoder["num_attention_heads"], decoder["head_dim"]) == (96, 4, 32)
    with safe_open(tmp_path / "draft" / "model.safetensors", framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    assert shapes["layers.0.self_attn.q_proj.weight"] == [4 * 32, 2 * 96]
    assert shapes["layers.0.self_attn.k_proj.weight"] == [2 * 32, 2 * 96]
    assert shapes["layers.0.self_attn.o_proj.weight"] == [96, 4 * 32]


def test_trained_on_short_rows_the_export_keeps_the_verifiers_positions(tmp_path: Path) -> None:
    """The length of rows or packs leaves no trace: positions beyond it are the verifier's, YaRN included."""
    verifier = rows.write_verifier(tmp_path / "verifier")
    decoder = exported(verifier, tmp_path / "draft", head_dim=8)
    assert decoder["max_position_embeddings"] == 4096
    assert decoder["rope_parameters"] == ROPE
    rotary = LlamaRotaryEmbedding(LlamaConfig.from_dict(decoder))
    beyond = torch.arange(128, 300)[None]
    cosine, _ = rotary(torch.zeros(1, 1, 1), beyond)
    assert torch.isfinite(cosine).all()
    assert len(torch.unique(cosine[0], dim=0)) == beyond.numel()


def test_a_theta_of_the_jobs_own_is_exported_in_the_verifiers_place(tmp_path: Path) -> None:
    verifier = rows.write_verifier(tmp_path / "verifier")
    decoder = exported(verifier, tmp_path / "draft", head_dim=8, rope_theta=1e6, max_position_embeddings=131072)
    assert decoder["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e6}
    assert decoder["max_position_embeddings"] == 131072


@pytest.fixture
def published(draft_folder: Path, context: Callable[..., StageContext], tmp_path: Path, inputs: Inputs) -> Path:
    """What the publish stage makes of an exported draft, copied elsewhere."""
    made = context("publish")
    train, evaluate = tmp_path / "train", tmp_path / "evaluate"
    train.mkdir()
    evaluate.mkdir()
    shutil.copytree(draft_folder, train / "draft")
    (train / "train_config.json").write_text(json.dumps({"steps": 3}))
    figures = {"acceptance_length": 2.5, "per_position": [0.8, 0.5, 0.2], "mode": "vllm"}
    report = {
        "mode": "vllm",
        "num_speculative_tokens": 3,
        "temperature": 0.0,
        "suites": {"heldout": {"trained": figures}},
        "gate": {"result": "none", "failures": [], "mode": "vllm"},
    }
    (evaluate / "report.json").write_text(json.dumps(report))
    vocab = tmp_path / "vocab"
    vocab.mkdir()
    sizes = {"draft_vocab_size": 56, "target_vocab_size": 64, "coverage_val": 1.0}
    (vocab / "report.json").write_text(json.dumps(sizes))
    capture = tmp_path / "capture" / "dataset"
    capture.mkdir(parents=True)
    meta = json.loads((inputs.dataset / "meta.json").read_text())
    (capture / "meta.json").write_text(json.dumps({**meta, "supervised_train_tokens": 9}))
    made.inputs.clear()  # type: ignore[attr-defined]
    made.inputs.update(  # type: ignore[attr-defined]
        train=train, evaluate=evaluate, vocab=vocab, capture=tmp_path / "capture"
    )
    publish.run(made)
    elsewhere = tmp_path / "elsewhere" / "copy"
    shutil.copytree(made.out, elsewhere)
    shutil.rmtree(made.out)
    return elsewhere


def test_a_published_folder_names_no_place_of_the_machine_that_made_it(
    published: Path, inputs: Inputs, tmp_path: Path
) -> None:
    files = sorted(path for path in published.rglob("*") if path.is_file())
    expected = {"config.json", "model.safetensors", "README.md", "eyrie.json", "evaluation.json", "train_config.json"}
    assert {path.name for path in files} == expected
    places = [str(inputs.root), str(tmp_path), str(Path.home()), str(Path.cwd()), "/tmp/"]
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".safetensors":
            content = content[: 8 + int.from_bytes(content[:8], "little")]  # names and metadata
        found = [place for place in places if place.encode() in content]
        assert not found, (path.name, found)


def test_a_published_folder_loads_where_it_was_copied_to(
    published: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check_draft_folder(published, verifier_document(inputs))
    config = Eagle3DraftModel.config_class.from_pretrained(str(published))
    assert config.draft_vocab_size == 56
    model = load_draft(published, inputs.verifier)
    assert np.isfinite(model.fc.weight.detach().numpy()).all()
