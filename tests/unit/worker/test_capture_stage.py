"""capture: a good file of states for every row, asked for again where it is bad, and laid out for the trainer."""

import json

import numpy as np
import pytest
from datasets import load_from_disk
from safetensors.numpy import load_file

from services.worker.data.rows import read_shards
from services.worker.stages import capture, generate, prepare, vocab
from shared.errors import UserError, VerifierError
from tests.support.stage_runs import (
    CONTROL_TOKENS,
    HIDDEN,
    LAYERS,
    StageRunner,
    job_spec,
    prompts,
    read_jsonl,
    write_rows,
    write_verifier,
)
from tests.support.verifier_stub import Script

pytestmark = pytest.mark.data
ROWS = 20


@pytest.fixture
def generated(tmp_path, stub):
    verifier = write_verifier(tmp_path / "verifier")

    def start(**changes):
        dataset = write_rows(tmp_path / "data.jsonl", prompts(ROWS))
        runner = StageRunner(tmp_path / "runs", job_spec(verifier, **changes), dataset, stub.url)
        runner.run(prepare)
        runner.run(generate)
        return runner

    return start


def states_of(out, index):
    return load_file(out / "dataset" / "hidden_states" / f"hs_{index}.safetensors")


def test_rows_lie_as_the_trainer_reads_them_training_rows_first(generated, stub):
    runner = generated()
    summary = runner.run(capture)
    assert (summary["rows"], summary["kept"], summary["inline"], summary["prefill"]) == (ROWS, ROWS, ROWS, 0)
    assert summary["layer_ids"] == [1, 2, 3, LAYERS]
    dataset = load_from_disk(str(runner.last.out / "dataset"))
    index = read_jsonl(runner.last.out / "dataset" / "rows.jsonl")
    assert [entry["split"] for entry in index] == ["train"] * 16 + ["val"] * 4
    made = {row.id: row for row, _ in read_shards(runner.inputs["generate"])}
    for place, (entry, row) in enumerate(zip(index, dataset, strict=True)):
        source, states = made[entry["row_id"]], states_of(runner.last.out, place)
        assert row["input_ids"].tolist() == source.input_ids == states["token_ids"].tolist()
        assert row["loss_mask"].tolist() == source.loss_mask
        assert entry["last_id"] == source.last_id
        assert states["hidden_states"].shape == (row["seq_len"], LAYERS, HIDDEN)
        np.testing.assert_array_equal(states["hidden_states"], stub.states(source.input_ids))


def test_prefilled_states_equal_those_captured_with_the_answer(generated, stub):
    runner = generated(capture={"mode": "prefill"})
    summary = runner.run(capture)
    assert (summary["inline"], summary["prefill"]) == (0, ROWS)
    assert len(stub.prefills()) == ROWS
    first = states_of(runner.last.out, 0)
    np.testing.assert_array_equal(first["hidden_states"], stub.states(first["token_ids"].tolist()))
    assert list(stub.exchange.iterdir()) == []


FAULTS = ["nan", "inf", "zeros", "zero_slot", "other_ids", "short", "few_slots", "narrow", "float16", "int32"]


@pytest.mark.parametrize("kind", [*FAULTS, "missing", "another_request"])
def test_bad_states_are_asked_for_again(generated, stub, kind):
    stub.plan("prompt-3", Script(states=kind))
    summary = (runner := generated()).run(capture)
    assert (summary["kept"], summary["inline"], summary["prefill"]) == (ROWS, ROWS - 1, 1)
    assert summary["accounting"] == {"unit": "rows", "taken": ROWS, "kept": ROWS, "rejected": {}}
    assert summary["dtype"] == "float32"
    assert len(stub.prefills()) == 1
    assert list(stub.exchange.iterdir()) == []
    warned = sum("asked for again" in event.get("message", "") for event in runner.events)
    assert warned == (kind in FAULTS)


@pytest.mark.parametrize("kind", FAULTS)
def test_bad_states_by_prefill_are_excluded_by_name_and_counted(generated, stub, kind):
    stub.plan("prefill please answer prompt-3", *[Script(states=kind)] * 2)
    summary = (runner := generated(capture={"mode": "prefill"})).run(capture)
    assert summary["excluded"] == summary["accounting"]["rejected"] == {"bad_states": 1}
    (excluded,) = read_jsonl(runner.last.out / "excluded.jsonl")
    assert (excluded["line"], excluded["reason"]) == (4, "bad_states")
    assert excluded["source"]


def test_eight_rows_have_their_own_states_one_by_one_together_and_again(generated, stub):
    seen = []
    for concurrency in (1, 8, 8):
        runner = generated(capture={"mode": "prefill"}, data={"limit": 8, "concurrency": concurrency})
        runner.run(capture)
        tensors = [states_of(runner.last.out, number) for number in range(8)]
        for place in tensors:
            np.testing.assert_array_equal(place["hidden_states"], stub.states(place["token_ids"].tolist()))
        seen.append({tuple(t["token_ids"].tolist()): t["hidden_states"] for t in tensors})
    for other in seen[1:]:
        assert other.keys() == seen[0].keys()
        assert all(np.array_equal(other[ids], seen[0][ids]) for ids in other)


def test_states_that_stay_bad_are_excluded_by_name_and_files_numbered_after_that(generated, stub):
    stub.plan("prompt-3", Script(states="nan"))
    stub.plan("prefill please answer prompt-3", *[Script(states="zeros")] * 2)
    summary = (runner := generated()).run(capture)
    assert summary["excluded"] == {"bad_states": 1}
    assert summary["rows"] == summary["kept"] + 1
    (excluded,) = read_jsonl(runner.last.out / "excluded.jsonl")
    assert excluded["line"] == 4
    assert "zero" in excluded["message"]
    names = {path.name for path in (runner.last.out / "dataset" / "hidden_states").iterdir()}
    assert names == {f"hs_{number}.safetensors" for number in range(ROWS - 1)}


def test_more_bad_rows_than_allowed_fail_the_stage_by_name(generated, stub):
    for number in range(12):
        stub.plan(f"prompt-{number}", Script(states="nan"))
        stub.plan(f"prefill please answer prompt-{number}", *[Script(states="nan")] * 2)
    runner = generated()
    with pytest.raises(VerifierError, match="12 of 20 rows have no good hidden states: row "):
        runner.run(capture)
    assert list(stub.exchange.iterdir()) == []


def test_only_what_is_missing_is_made_again(generated, stub):
    runner = generated(capture={"mode": "prefill"}, data={"max_bad_fraction": 0.0})
    for number in range(3):
        stub.plan(f"prefill please answer prompt-{number + 4}", *[Script(states="nan")] * 2)
    with pytest.raises(VerifierError):
        runner.run(capture)
    asked = len(stub.prefills())
    summary = runner.run(capture, previous=(runner.last.work,))
    assert len(stub.prefills()) - asked == 3
    assert (summary["kept"], summary["prefill"]) == (ROWS, ROWS)


def test_three_states_that_were_deleted_are_the_three_that_are_made_again(generated, stub):
    runner = generated()
    for _, states in list(read_shards(runner.inputs["generate"]))[5:8]:
        states.unlink()
    summary = runner.run(capture)
    assert (summary["kept"], summary["inline"], summary["prefill"]) == (ROWS, ROWS - 3, 3)
    assert len(stub.prefills()) == 3
    assert list(stub.exchange.iterdir()) == []


def test_three_states_deleted_from_a_broken_attempt_are_made_again(generated, stub):
    runner = generated(capture={"mode": "prefill"})
    runner.run(capture)
    work = runner.last.work
    for states in sorted((work / "rows").glob("*.safetensors"))[:3]:
        states.unlink()
    asked = len(stub.prefills())
    assert runner.run(capture, previous=(work,))["kept"] == ROWS
    assert len(stub.prefills()) - asked == 3


def test_rows_that_another_run_has_prefilled_are_not_prefilled_again(generated, stub):
    first = generated(capture={"mode": "prefill"}, data={"limit": 5})
    first.run(capture)
    second = generated(capture={"mode": "prefill"})
    summary = second.run(capture, siblings=(first.last.out,))
    assert (summary["kept"], summary["prefill"]) == (ROWS, ROWS)
    assert len(stub.prefills()) == ROWS
    for place in range(ROWS):
        tensors = states_of(second.last.out, place)
        np.testing.assert_array_equal(tensors["hidden_states"], stub.states(tensors["token_ids"].tolist()))


def test_rows_without_any_supervised_token_end_the_stage_before_a_gpu_is_leased(generated):
    runner = generated()
    for shard in runner.inputs["generate"].glob("rows_*/rows.jsonl"):
        rows = read_jsonl(shard)
        for row in rows:
            row["loss_mask"] = [1] + [0] * (len(row["input_ids"]) - 1)
        write_rows(shard, rows)
    with pytest.raises(UserError, match="no token of the 16 rows to train on is supervised"):
        runner.run(capture)


def test_a_verifier_that_goes_away_ends_the_stage_with_its_own_error(generated, stub):
    runner = generated(capture={"mode": "prefill"}, data={"concurrency": 16})
    stub.gone = True
    with pytest.raises(VerifierError):
        runner.run(capture)
    assert list(stub.exchange.iterdir()) == []


def test_states_are_stored_in_the_type_that_is_asked_for(generated):
    summary = generated(capture={"dtype": "bfloat16"}).run(capture)
    assert summary["dtype"] == "bfloat16"


def test_the_vocabulary_holds_what_is_supervised_and_every_control_token(generated):
    runner = generated()
    runner.run(capture)
    report = runner.run(vocab)
    t2d, d2t = (np.load(runner.last.out / f"{name}.npy") for name in ("t2d", "d2t"))
    assert t2d[list(CONTROL_TOKENS)].all()
    assert report["coverage_train"] == 1.0
    assert (np.arange(len(d2t)) + d2t).tolist() == np.flatnonzero(t2d).tolist()
    assert json.loads((runner.last.out / "report.json").read_text()) == report
