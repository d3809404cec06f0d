"""Content keys: what changes a stage's result changes its key, and nothing else does."""

import pytest

from services.worker.stage_keys import UPSTREAM, stage_key, stage_parameters, verifier_fingerprint
from shared.schemas.job import Stage
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


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"])
def test_a_verifiers_fingerprint_follows_what_decides_its_answers(tmp_path, name):
    folder = write_verifier(tmp_path)
    before = verifier_fingerprint(folder)
    (folder / "README.md").write_text("not read")
    assert verifier_fingerprint(folder) == before
    (folder / name).write_bytes(b"{} ")
    assert verifier_fingerprint(folder) != before
