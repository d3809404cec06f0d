"""Ready-made rows: read, split and checked before anything is done with them."""

import json

import pytest
import torch

from services.worker.data.token_freq import read_token_freq
from services.worker.stages import prepare
from shared.errors import UserError
from shared.schemas.accounting import Accounting
from shared.schemas.prepared import Prepared
from tests.support.ready_folders import enter_folder, make_rows, states_of, write_folder, write_states
from tests.support.stage_runs import HIDDEN, LAYERS, StageRunner, job_spec, read_jsonl, write_verifier
from tests.support.vocabularies import TRAP, Trap

pytestmark = pytest.mark.data
ROWS = make_rows(10)


@pytest.fixture
def start(tmp_path):
    """Make a dataset of a folder and a runner for it."""
    verifier = write_verifier(tmp_path / "verifier")

    def make(folder, **changes):
        changes["data"] = {"generate": False, **changes.get("data", {})}
        return StageRunner(tmp_path / "runs", job_spec(verifier, **changes), enter_folder(tmp_path / "ds", folder))

    return make


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "rows", ROWS, token_freq=False)


@pytest.fixture
def counted(tmp_path):
    return write_folder(tmp_path / "rows", ROWS)


def prepared(runner):
    return [Prepared.model_validate(row) for row in read_jsonl(runner.last.out / "conversations.jsonl")]


def test_rows_are_taken_as_they_are_with_the_names_of_their_states(start, folder):
    summary = (runner := start(folder)).run(prepare)
    assert (summary["rows"], summary["kept"], summary["train"], summary["val"]) == (10, 10, 8, 2)
    assert Accounting.model_validate(summary["accounting"]).kept == 10
    for number, row in enumerate(prepared(runner)):
        assert (row.input_ids, row.loss_mask) == ROWS[number]
        assert (row.line, row.states) == (number + 1, f"files/hidden_states/hs_{number}.safetensors")
        assert (runner.inputs["dataset"] / row.states).is_file()


@pytest.mark.parametrize("shards", [1, 3, 10])
def test_neither_shards_nor_where_states_lie_change_the_rows(shards, start, tmp_path, folder):
    other = write_folder(tmp_path / "other", ROWS, shards=shards, beside=True, token_freq=False)
    start(folder).run(prepare)
    (runner := start(other)).run(prepare)
    assert [(row.input_ids, row.split) for row in prepared(runner)] == [
        (row.input_ids, row.split) for row in prepared_of_first(tmp_path)
    ]
    assert prepared(runner)[4].states == "files/hs_4.safetensors"


def prepared_of_first(tmp_path):
    first = min((tmp_path / "runs" / "prepare").iterdir(), key=lambda path: path.stat().st_mtime)
    return [Prepared.model_validate(row) for row in read_jsonl(first / "out" / "conversations.jsonl")]


def test_rows_without_states_are_taken_without(start, tmp_path):
    (runner := start(write_folder(tmp_path / "rows", ROWS, states=[0, 3], token_freq=False))).run(prepare)
    assert [row.line for row in prepared(runner) if row.states] == [1, 4]


def test_bad_rows_are_refused_by_their_number_as_those_of_files_are(start, tmp_path):
    rows = [*ROWS, ([1, 512], [0, 1]), ([1, -1], [0, 1]), ([1, 2, 3], [0, 1]), ([1, 2], [0, 2]), ([1, 2], [1, 0])]
    rows += [
        ([1], [1]),
        ([], []),
        ROWS[0],
        (list(range(16, 300)), [0] * 2 + [1] * 282),
        (list(range(16, 300)), [0] * 200 + [1] * 84),
    ]
    summary = (runner := start(write_folder(tmp_path / "rows", rows, states=[], token_freq=False))).run(prepare)
    rejects = {item["line"]: item["reason"] for item in read_jsonl(runner.last.out / "rejects.jsonl")}
    assert rejects == {
        11: "bad_token_id",
        12: "bad_token_id",
        13: "mask_length",
        14: "bad_mask",
        15: "no_supervised_token",
        16: "no_supervised_token",
        17: "no_supervised_token",
        18: "duplicate",
        20: "prompt_too_long",
    }
    assert summary["mended"] == {"clipped": 1}
    assert summary["rows"] == 20 == summary["kept"] + sum(summary["rejected"].values())


def entries(**of):
    """Lines of `rows.jsonl` for `ROWS`; keys are fields, values a function of the row's number."""
    lines = [{"index": n, **{name: value(n) for name, value in of.items()}} for n in range(len(ROWS))]
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_a_split_that_rows_have_already_is_theirs(start, folder):
    (folder / "rows.jsonl").write_text(entries(split=lambda n: "val" if n in (2, 7, 9) else "train"))
    (runner := start(folder)).run(prepare)
    assert [row.line - 1 for row in prepared(runner) if row.split == "val"] == [2, 7, 9]


def test_a_split_with_one_side_only_is_refused(start, folder):
    (folder / "rows.jsonl").write_text(entries(split=lambda n: "train"))
    with pytest.raises(UserError, match="one side"):
        start(folder).run(prepare)


def test_rows_of_one_conversation_stay_together(start, folder):
    (folder / "rows.jsonl").write_text(entries(conversation=lambda n: f"c{n // 2}"))
    (runner := start(folder)).run(prepare)
    sides = {}
    for row in prepared(runner):
        sides.setdefault((row.line - 1) // 2, set()).add(row.split)
    assert all(len(found) == 1 for found in sides.values())
    assert set.union(*sides.values()) == {"train", "val"}


def test_last_ids_go_on_to_the_rows_and_must_be_tokens(start, folder):
    (folder / "rows.jsonl").write_text(entries(last_id=lambda n: 512 if n == 3 else 480))
    summary = (runner := start(folder)).run(prepare)
    assert summary["rejected"] == {"bad_token_id": 1}
    assert {row.last_id for row in prepared(runner)} == {480}


def test_lengths_that_contradict_each_other_refuse_the_row(start, folder):
    (folder / "rows.jsonl").write_text(entries(seq_len=lambda n: len(ROWS[n][0]) + (n == 5)))
    summary = (runner := start(folder)).run(prepare)
    assert summary["rejected"] == {"bad_length": 1}
    (reject,) = read_jsonl(runner.last.out / "rejects.jsonl")
    assert reject["line"] == 6


BAD_INDEX = {
    "a line less": lambda text: text[: text.rindex("{")],
    "a line more": lambda text: text + '{"index": 10}\n',
    "another order": lambda text: "\n".join(text.splitlines()[::-1]),
    "no JSON": lambda text: text.replace("{", "(", 1),
    "no object": lambda text: "[]\n" + text[text.index("\n") + 1 :],
    "a split of its own": lambda text: text.replace("train", "test", 1),
    "a last id of text": lambda text: text.replace('"split"', '"last_id": "x", "split"', 1),
    "too deep": lambda text: "[" * 100_000 + "\n" + text[text.index("\n") + 1 :],
}


@pytest.mark.parametrize("kind", BAD_INDEX)
def test_an_index_that_is_not_of_these_rows_is_refused(kind, start, folder):
    (folder / "rows.jsonl").write_text(BAD_INDEX[kind](entries(split=lambda n: "val" if n == 1 else "train")))
    with pytest.raises(UserError) as caught:
        start(folder).run(prepare)
    assert "rows.jsonl" in caught.value.where


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"layer_ids": [1, 2, LAYERS]}, "layer_ids"),
        ({"layer_ids": [0, 1, 2, LAYERS]}, "layer_ids"),
        ({"hidden_size": HIDDEN * 2}, "hidden_size"),
    ],
)
def test_states_of_other_layers_are_refused_early_by_their_description(meta, message, start, folder):
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match=message) as caught:
        start(folder).run(prepare)
    assert caught.value.where == "meta.json"


@pytest.mark.parametrize("shape", [(LAYERS - 1, HIDDEN), (LAYERS + 1, HIDDEN), (LAYERS, HIDDEN + 1)])
def test_states_of_other_shapes_are_refused_early_with_both(shape, start, tmp_path):
    folder = write_folder(tmp_path / "rows", ROWS, states=[], token_freq=False)
    (folder / "hs_0.safetensors").write_bytes(b"cannot be read")
    for number in (1, 2):
        write_states(folder / f"hs_{number}.safetensors", ROWS[number][0], states_of(ROWS[number][0], *shape))
    with pytest.raises(
        UserError, match=rf"{shape[0]}, {shape[1]}\], the job wants \[S, {LAYERS}, {HIDDEN}\]"
    ) as caught:
        start(folder).run(prepare)
    assert caught.value.where == "hs_1.safetensors"


def test_the_layers_may_be_named(start, folder):
    (folder / "meta.json").write_text(json.dumps({"layer_ids": [1, 3, LAYERS], "hidden_size": HIDDEN}))
    for path in (folder / "hidden_states").iterdir():
        row = ROWS[int(path.stem.split("_")[1])][0]
        write_states(path, row, states_of(row, 3))
    assert start(folder, capture={"layer_ids": [1, 3]}).run(prepare)["kept"] == 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds list"),
        ({"16": 1}, "wanted are whole numbers"),
        ({16: 1.5}, "wanted are whole numbers"),
        ({True: 1}, "wanted are whole numbers"),
        ({16: torch.tensor(1)}, "wanted are whole numbers"),
        (Trap(), "weights only"),
    ],
)
def test_counts_are_whole_numbers_and_nothing_else(content, message, tmp_path):
    torch.save(content, tmp_path / "token_freq.pt")
    with pytest.raises(UserError, match=message):
        read_token_freq(tmp_path / "token_freq.pt")
    assert not TRAP.exists()


def test_a_file_of_counts_that_cannot_be_read_is_refused_by_name(start, counted):
    torch.save(Trap(), counted / "token_freq.pt")
    with pytest.raises(UserError, match="weights only") as caught:
        start(counted).run(prepare)
    assert caught.value.where == "token_freq.pt"
    assert "leave the file out" in caught.value.hint
    assert not TRAP.exists()


def test_counts_of_speculators_are_ours(start, counted):
    assert start(counted).run(prepare)["kept"] == len(ROWS)


def test_counts_that_differ_in_one_token_name_it(start, counted):
    counts = torch.load(counted / "token_freq.pt", weights_only=True)
    token = sorted(counts)[3]
    counts[token] += 1
    torch.save(counts, counted / "token_freq.pt")
    with pytest.raises(UserError, match=f"token {token} is learnt {counts[token]} times; .* {counts[token] - 1} times"):
        start(counted).run(prepare)


def test_rows_whose_answers_the_verifier_shall_write_are_refused(start, folder):
    with pytest.raises(UserError, match="pretokenised"):
        start(folder, data={"generate": True}).run(prepare)
