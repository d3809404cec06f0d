"""Inputs of the train stage, made once: a Kimi-shaped verifier, rows that a draft can learn, and a vocabulary."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from speculators.models.eagle3 import Eagle3DraftModel
from transformers import LlamaConfig

from services.worker.stage_context import Reporter, StageContext
from services.worker.training import verifier_weights
from services.worker.training.export import export_draft
from shared.draft_shape import draft_shape
from shared.presets import resolve
from shared.schemas.spec import DraftSpec
from tests.support import synthetic_rows as rows

DRAFT = {
    "vocab_size": 56,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 64,
}
TRAIN = {"pack_length": 256, "epochs": 3, "gpus": 0, "num_workers": 0, "lr": 5e-3}


@dataclass
class Inputs:
    """Folders of the stages before, and how to run the stage on them."""

    root: Path
    context: Callable[..., StageContext] = field(init=False)

    @property
    def verifier(self) -> Path:
        return self.root / "verifier"

    @property
    def dataset(self) -> Path:
        return self.root / "capture" / "dataset"

    @property
    def vocab(self) -> Path:
        return self.root / "vocab"


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    made = Inputs(tmp_path_factory.mktemp("train_inputs"))
    verifier = rows.write_verifier(made.verifier)
    every = rows.made_rows(verifier, 70)
    train, val = every[:60], every[60:]
    rows.write_dataset(made.dataset, train, val, [*rows.AUX_LAYERS, rows.LAYERS])
    rows.write_vocabulary(made.vocab, train, val, rows.VOCAB, DRAFT["vocab_size"])
    return made


@pytest.fixture
def context(inputs: Inputs, tmp_path: Path) -> Callable[..., StageContext]:
    """Build a stage's context: `context("attempt", previous=(...), lr=..., draft={...})`."""

    def build(
        name: str = "attempt",
        previous: tuple[Path, ...] = (),
        draft: dict[str, Any] | None = None,
        integrations: list[str] | None = None,
        **train: Any,
    ) -> StageContext:
        folder = tmp_path / name
        for part in ("out", "work"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        spec = resolve(
            {
                "preset": "tiny",
                "verifier": {"model": str(inputs.verifier)},
                "data": {"dataset": "ds_x"},
                "draft": {**DRAFT, **(draft or {})},
                "train": {**TRAIN, **train},
                "integrations": integrations,
            }
        )
        return StageContext(
            job_id="job_x",
            stage="train",
            token="t",
            spec=spec,
            inputs={"capture": inputs.root / "capture", "vocab": inputs.vocab},
            out=folder / "out",
            work=folder / "work",
            previous=previous,
            exchange=folder,
            endpoint=None,
            served_model=None,
            gpus=(),
            gpu_verifier=False,
            report=Reporter(io.StringIO()),
        )

    return build


@pytest.fixture
def make_draft(inputs: Inputs) -> Callable[..., Any]:
    """Build an untrained draft in memory: `make_draft(norm_before_fc=False)`."""

    def build(**fields: Any) -> tuple[Any, dict[str, Any]]:
        spec = DraftSpec(**{**DRAFT, **fields})
        shape = draft_shape(spec, verifier_document(inputs))
        verifier_weights.install()
        torch.manual_seed(0)
        model = Eagle3DraftModel.from_training_args(
            LlamaConfig.from_dict(dict(shape)),
            t2d=torch.from_numpy(np.load(inputs.vocab / "t2d.npy")),
            d2t=torch.from_numpy(np.load(inputs.vocab / "d2t.npy")),
            draft_vocab_size=spec.vocab_size,
            target_layer_ids=list(rows.AUX_LAYERS),
            verifier_name_or_path=str(inputs.verifier),
            norm_before_residual=spec.norm_before_residual,
            norm_before_fc=spec.norm_before_fc,
            norm_output=spec.norm_output,
            ttt_steps=3,
            draft_attn_impl="sdpa",
        )
        return model, shape

    return build


@pytest.fixture
def draft_folder(make_draft: Callable[..., Any], tmp_path: Path) -> Path:
    """An exported, untrained draft."""
    model, shape = make_draft()
    export_draft(model, tmp_path / "draft", dtype="float32", shape=shape, verifier_name="tiny-verifier")
    return tmp_path / "draft"


def verifier_document(inputs: Inputs) -> dict[str, Any]:
    import json

    document: dict[str, Any] = json.loads((inputs.verifier / "config.json").read_text())
    return document
