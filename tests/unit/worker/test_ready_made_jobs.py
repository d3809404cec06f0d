"""Jobs of ready-made rows: what our own capture left, sent back, gives the same rows, states and vocabulary."""

import numpy as np
import pytest
from datasets import load_from_disk
from safetensors.numpy import load_file
from speculators.train.data import ArrowDataset

from services.worker.data import verifier_failures
from services.worker.stages import capture, generate, prepare, vocab
from shared.errors import UserError
from shared.schemas.accounting import Accounting
from tests.support.ready_folders import content_of, enter_folder, make_rows, states_of, write_folder, write_states
from tests.support.stage_runs import (
    HIDDEN,
    LAYERS,
    StageRunner,
    job_spec,
    prompts,
    read_jsonl,
    write_rows,
    write_verifier,
)
from tests.support.verifier_stub import VerifierStub, words

pytestmark = pytest.mark.data
COUNT = 20
ROWS = make_rows(COUNT)
STAGES = (prepare, generate, capture)


@pytest.fixture
def stub(tmp_path, monkeypatch):
    monkeypatch.setattr(verifier_failures, "FIRST_BACKOFF_S", 0.001)
    with VerifierStub(tmp_path / "ready" / "exchange") as running:
        yield running


@pytest.fixture
def verifier(tmp_path):
    return write_verifier(tmp_path / "verifier")


@pytest.fixture
def start(tmp_path, verifier):
    """A runner for a folder of rows; without a verifier unless one is given."""

    def make(folder, endpoint=None, **changes):
        changes["data"] = {"generate": False, **changes.get("data", {})}
        dataset = enter_folder(tmp_path / "ds", folder)
        return StageRunner(tmp_path / "ready", job_spec(verifier, **changes), dataset, endpoint)

    return make


def dataset_of(runner):
    return runner.inputs["capture"] / "dataset"


def rows_of(runner):
    rows = load_from_disk(str(dataset_of(runner))).with_format(None)
    return [(row["input_ids"], row["loss_mask"]) for row in rows]


def test_what_our_own_capture_left_comes_back_as_it_was_without_a_verifier(tmp_path, verifier, stub, start):
    different = {tuple(words(row["prompt"])): row for row in prompts(3 * COUNT)}  # some words share an id
    dataset = write_rows(tmp_path / "data.jsonl", list(different.values())[:COUNT])
    first = StageRunner(tmp_path / "ready", job_spec(verifier), dataset, stub.url)
    for stage in (*STAGES, vocab):
        first.run(stage)
    asked = len(stub.seen)
    second = start(dataset_of(first))
    for stage in (*STAGES, vocab):
        summary = second.run(stage)
        assert Accounting.model_validate(summary["accounting"]).kept == COUNT
    assert len(stub.seen) == asked
    assert rows_of(second) == rows_of(first)
    index = [read_jsonl(dataset_of(runner) / "rows.jsonl") for runner in (first, second)]
    for name in ("split", "last_id", "seq_len", "supervised"):
        assert [entry[name] for entry in index[0]] == [entry[name] for entry in index[1]]
    states = [content_of(dataset_of(runner) / "hidden_states") for runner in (first, second)]
    assert states[0] == states[1]
    for name in ("t2d.npy", "d2t.npy", "token_freq.npy"):
        assert (first.inputs["vocab"] / name).read_bytes() == (second.inputs["vocab"] / name).read_bytes()


def test_rows_of_speculators_are_trained_on_as_they_are(start, tmp_path):
    runner = start(write_folder(tmp_path / "rows", ROWS, shards=2))
    for stage in STAGES:
        summary = runner.run(stage)
    assert (summary["rows"], summary["kept"], summary["inline"], summary["prefill"]) == (COUNT, COUNT, COUNT, 0)
    known = {tuple(ids): mask for ids, mask in ROWS}
    for split, count in (("train", 16), ("val", 4)):
        read = ArrowDataset(256, str(dataset_of(runner)), on_missing="raise", train_ratio=0.8, split=split)
        assert len(read) == count
        for row in (read[place] for place in range(count)):
            ids = row["input_ids"].tolist()
            assert row["loss_mask"].tolist() == known[tuple(ids)]
            expected = states_of(ids)
            np.testing.assert_array_equal(row["hidden_states"].numpy(), expected[:, :-1].reshape(len(ids), -1))
            np.testing.assert_array_equal(row["verifier_last_hidden_states"].numpy(), expected[:, -1])


def damaged(kind, ids):
    states = states_of(ids)
    match kind:
        case "nan":
            states[1, 0, 0] = np.nan
        case "infinite":
            states[0, 1, 2] = np.inf
        case "zeros":
            states[:] = 0
        case "a layer of zeros":
            states[:, 1] = 0
        case "too short":
            states = states[:-1]
        case "a layer less":
            states = states[:, 1:]
        case "too narrow":
            states = states[..., 1:]
    return states


def damage(kind, folder, row):
    path, ids = folder / "hidden_states" / f"hs_{row}.safetensors", ROWS[row][0]
    match kind:
        case "missing":
            path.unlink()
        case "noise":
            path.write_bytes(b"\x10" + bytes(7) + b"{" + bytes(100))
        case "cut":
            path.write_bytes(path.read_bytes()[:-10])
        case "other ids":
            write_states(path, [*ids[:-1], ids[-1] + 1], states_of(ids))
        case _:
            write_states(path, ids, damaged(kind, ids))


DAMAGE = [
    "missing",
    "nan",
    "infinite",
    "zeros",
    "a layer of zeros",
    "too short",
    "a layer less",
    "too narrow",
    "noise",
    "cut",
    "other ids",
]


@pytest.mark.parametrize("kind", DAMAGE)
def test_states_that_are_not_good_are_asked_for_where_there_is_a_verifier(kind, start, stub, tmp_path):
    folder = write_folder(tmp_path / "rows", ROWS, token_freq=False)
    damage(kind, folder, 7)
    runner = start(folder, stub.url)
    for stage in STAGES:
        summary = runner.run(stage)
    assert (summary["kept"], summary["inline"], summary["prefill"]) == (COUNT, COUNT - 1, 1)
    assert [seen.body["prompt"] for seen in stub.prefills()] == [ROWS[7][0]]
    assert stub.chats() == []
    place = [row[0] for row in rows_of(runner)].index(ROWS[7][0])
    made = load_file(dataset_of(runner) / "hidden_states" / f"hs_{place}.safetensors")
    np.testing.assert_array_equal(made["hidden_states"], stub.states(ROWS[7][0]))


@pytest.mark.parametrize("kind", DAMAGE)
def test_without_a_verifier_they_are_left_out_by_name(kind, start, tmp_path):
    folder = write_folder(tmp_path / "rows", ROWS, token_freq=False)
    damage(kind, folder, 7)
    runner = start(folder)
    for stage in STAGES:
        summary = runner.run(stage)
    reason = "no_states" if kind == "missing" else "bad_states"
    assert (summary["kept"], summary["excluded"]) == (COUNT - 1, {reason: 1})
    (excluded,) = read_jsonl(runner.inputs["capture"] / "excluded.jsonl")
    assert (excluded["line"], excluded["reason"]) == (8, reason)
    assert "no verifier to ask" in excluded["message"]
    names = {path.name for path in (dataset_of(runner) / "hidden_states").iterdir()}
    assert names == {f"hs_{number}.safetensors" for number in range(COUNT - 1)}


def test_too_many_of_them_are_the_users_error(start, tmp_path):
    runner = start(write_folder(tmp_path / "rows", ROWS, states=range(COUNT - 2), token_freq=False))
    for stage in (prepare, generate):
        runner.run(stage)
    with pytest.raises(UserError, match="2 of 20 rows have no good hidden states") as caught:
        runner.run(capture)
    assert "verifier.endpoint" in caught.value.hint


def test_a_row_that_is_clipped_keeps_the_states_of_what_is_left(start, tmp_path):
    long = (list(range(16, 216)), [0] * 4 + [1] * 196)
    runner = start(write_folder(tmp_path / "rows", [*ROWS, long], token_freq=False))
    for stage in STAGES:
        summary = runner.run(stage)
    assert summary["kept"] == COUNT + 1
    place = [len(row[0]) for row in rows_of(runner)].index(128)
    made = load_file(dataset_of(runner) / "hidden_states" / f"hs_{place}.safetensors")
    assert made["hidden_states"].shape == (128, LAYERS, HIDDEN)
    np.testing.assert_array_equal(made["hidden_states"], states_of(long[0])[:128])


def test_what_a_user_sent_is_not_changed_by_what_is_made_of_it(start, tmp_path):
    runner = start(write_folder(tmp_path / "rows", ROWS, token_freq=False), capture={"dtype": "bfloat16"})
    before = content_of(runner.inputs["dataset"])
    for stage in STAGES:
        summary = runner.run(stage)
    assert summary["dtype"] == "bfloat16"
    assert content_of(runner.inputs["dataset"]) == before
