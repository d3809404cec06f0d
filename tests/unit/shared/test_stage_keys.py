"""Content keys: what changes a stage's result changes its key, and nothing else does."""

import pytest

from shared.schemas.job import Stage
from shared.stage_keys import UPSTREAM, stage_key, stage_parameters
from shared.verifier_identity import SMALL_WEIGHTS_BYTES, identify_verifier
from tests.support.stage_runs import job_spec, write_verifier

MATTERS = {
    Stage.PREPARE: {"data": {"seed": 1}},
    Stage.GENERATE: {"data": {"sampling": {"temperature": 0.5}}},
    Stage.CAPTURE: {"capture": {"layer_ids": [1, 2]}},
    Stage.VOCAB: {"draft": {"vocab_size": 64}},
    Stage.TRAIN: {"train": {"lr": 0.5}},
    Stage.EVALUATE: {"evaluate": {"gate": {"min_acceptance_length": 2.0}}},
}
NEVER_MATTERS = {
    "name": {"name": "another name"},
    "metadata": {"metadata": {"owner": "x"}},
    "limits": {"limits": {"train_s": 5}},
    "concurrency": {"data": {"concurrency": 3}},
    "loader processes": {"train": {"num_workers": 2}},
    "time between resume points": {"train": {"checkpoint_every_s": 7}},
    "where the verifier runs": {"verifier": {"endpoint": "http://other:1"}},
}


def keys(folder, **changes):
    spec = job_spec(folder, **changes)
    return {stage: stage_key(stage, {"verifier": "v"}, stage_parameters(stage, spec)) for stage in Stage}


@pytest.mark.parametrize("change", NEVER_MATTERS.values(), ids=NEVER_MATTERS)
def test_what_cannot_change_a_result_keeps_every_key(tmp_path, change):
    assert keys(tmp_path, **change) == keys(tmp_path)


@pytest.mark.parametrize(("stage", "change"), MATTERS.items(), ids=MATTERS)
def test_what_changes_a_stages_result_changes_its_key(tmp_path, stage, change):
    assert keys(tmp_path, **change)[stage] != keys(tmp_path)[stage]


def test_training_does_not_make_the_data_anew(tmp_path):
    changed, same = keys(tmp_path, train={"lr": 0.5}), keys(tmp_path)
    assert {stage for stage in Stage if changed[stage] != same[stage]} == {Stage.TRAIN}


def test_another_input_is_another_key(tmp_path):
    parameters = stage_parameters(Stage.VOCAB, job_spec(tmp_path))
    assert stage_key(Stage.VOCAB, {"capture": "a"}, parameters) != stage_key(Stage.VOCAB, {"capture": "b"}, parameters)


def test_equal_inputs_and_parameters_of_two_stages_have_different_keys():
    assert len({stage_key(stage, {}, {}) for stage in Stage}) == len(Stage)


def test_every_stage_reads_only_earlier_ones():
    order = list(Stage)
    assert all(order.index(needed) < order.index(stage) for stage in Stage for needed in UPSTREAM[stage])


FILES = ["config.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_a_verifiers_fingerprint_follows_what_decides_its_answers(tmp_path, name):
    folder = write_verifier(tmp_path)
    before = identify_verifier(folder).fingerprint
    (folder / "README.md").write_text("not read")
    assert identify_verifier(folder).fingerprint == before
    (folder / name).write_bytes(b"{} ")
    assert identify_verifier(folder).fingerprint != before


@pytest.mark.data
def test_the_parts_of_an_identity_tell_what_differs(tmp_path):
    folder = write_verifier(tmp_path)
    before = identify_verifier(folder, "v1")
    (folder / "chat_template.jinja").write_text("other")
    after = identify_verifier(folder, "v2")
    changed = {name for name, value in before if value != getattr(after, name)}
    assert changed == {"revision", "files", "chat_template_sha256"}


@pytest.mark.data
def test_large_weights_of_one_size_differ_when_a_part_of_them_does(tmp_path):
    folder = write_verifier(tmp_path)
    weights = folder / "model-00001-of-00002.safetensors"
    with weights.open("wb") as file:
        file.truncate(2 * SMALL_WEIGHTS_BYTES)  # sparse
    before = identify_verifier(folder)
    with weights.open("r+b") as file:
        file.seek(SMALL_WEIGHTS_BYTES + 5)
        file.write(b"x")
    assert identify_verifier(folder).weights_sha256 != before.weights_sha256
