"""A draft folder is checked tensor by tensor and field by field."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.worker.draft_folder import ExpectedDraft, check_draft_folder
from shared.errors import InternalError, UserError
from tests.unit.worker.training.conftest import Inputs, verifier_document


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        target = config
        *parents, last = name.split("__")
        for parent in parents:
            target = target[parent]
        if value is None:
            target.pop(last)
        else:
            target[last] = value
    path.write_text(json.dumps(config))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_an_exported_draft_passes_and_holds_no_path(draft_folder: Path, inputs: Inputs) -> None:
    check = check_draft_folder(draft_folder, verifier_document(inputs))
    assert check.layer_ids == (1, 3, 5)
    assert check.draft_vocab_size == 56
    assert check.dtype == "float32"
    text = (draft_folder / "config.json").read_text()
    assert str(inputs.root) not in text
    assert json.loads(text)["speculators_config"]["verifier"]["name_or_path"] == "tiny-verifier"
    assert sorted(path.name for path in draft_folder.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("norm_before_fc", [True, False])
def test_two_layers_of_another_shape_pass_too(
    make_draft: Callable[..., Any], inputs: Inputs, tmp_path: Path, norm_before_fc: bool
) -> None:
    from services.worker.training.export import export_draft

    fields = {"num_layers": 2, "num_key_value_heads": 2, "head_dim": 16}
    model, shape = make_draft(norm_before_fc=norm_before_fc, norm_output=False, **fields)
    export_draft(model, tmp_path / "d", dtype="bfloat16", shape=shape, verifier_name="v")
    check = check_draft_folder(tmp_path / "d", verifier_document(inputs))
    assert check.dtype == "bfloat16"
    decoder = json.loads((tmp_path / "d" / "config.json").read_text())["transformer_layer_config"]
    assert (decoder["head_dim"], decoder["num_hidden_layers"]) == (16, 2)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"norm_before_residual": None}, "norm_before_residual"),
        ({"eagle_aux_hidden_state_layer_ids": None}, "eagle_aux_hidden_state_layer_ids"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}, "eagle_aux_hidden_state_layer_ids"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 3]}, "eagle_aux_hidden_state_layer_ids"),
        ({"transformer_layer_config__head_dim": None}, "head_dim"),
        ({"transformer_layer_config__head_dim": 16}, "q_proj"),
        ({"draft_vocab_size": 65}, "draft_vocab_size"),
        ({"speculators_config__verifier__name_or_path": "/models/kimi"}, "name_or_path"),
        ({"speculators_model_type": "dflash"}, "speculators_model_type"),
    ],
)
def test_a_wrong_field_is_named(draft_folder: Path, inputs: Inputs, changes: dict[str, Any], where: str) -> None:
    edit_config(draft_folder, **changes)
    with pytest.raises(UserError) as refused:
        check_draft_folder(draft_folder, verifier_document(inputs))
    assert where in refused.value.where


def spoil_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"][0, 0] = float("nan")


def spoil_offsets(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))  # targets where offsets belong


def spoil_names(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["d2t"]


def spoil_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["norm.weight"] = torch.ones(3)


def spoil_dtype(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"].half()


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (spoil_nan, "fc.weight"),
        (spoil_offsets, "d2t"),
        (spoil_names, "d2t"),
        (spoil_shape, "norm.weight"),
        (spoil_dtype, "fc.weight"),
    ],
)
def test_a_wrong_tensor_is_named(
    draft_folder: Path,
    inputs: Inputs,
    spoil: Callable[[dict[str, torch.Tensor]], None],
    where: str,
) -> None:
    edit_tensors(draft_folder, spoil)
    with pytest.raises(UserError) as refused:
        check_draft_folder(draft_folder, verifier_document(inputs))
    assert where in refused.value.where


def test_pickles_and_truncated_weights_are_refused(draft_folder: Path, inputs: Inputs) -> None:
    weights = draft_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="cannot be read"):
        check_draft_folder(draft_folder, verifier_document(inputs))
    (draft_folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="only safetensors"):
        check_draft_folder(draft_folder, verifier_document(inputs))


def test_our_own_draft_must_be_what_the_job_asked_for(
    draft_folder: Path, inputs: Inputs, make_draft: Callable[..., Any]
) -> None:
    _, shape = make_draft()
    expected = {
        "shape": shape,
        "draft_vocab_size": 56,
        "layer_ids": [1, 3, 5],
        "norm_before_residual": True,
        "norm_before_fc": True,
        "norm_output": True,
        "dtype": "float32",
    }
    check_draft_folder(draft_folder, verifier_document(inputs), ExpectedDraft(**expected))
    wrong = ExpectedDraft(**{**expected, "norm_output": False})
    with pytest.raises(InternalError, match="norm_output"):
        check_draft_folder(draft_folder, verifier_document(inputs), wrong)
