"""The draft's vocabulary: what it holds, what it covers, what is refused."""

import json

import numpy as np
import pytest
from datasets import Dataset

from services.worker.data.supervised_counts import count_supervised
from services.worker.data.vocabulary import choose_tokens, coverage, offsets
from shared.data.control_tokens import added_tokens, emitted_token_ids
from shared.errors import UserError

pytestmark = pytest.mark.data

V = 512


def counts_of(ids):
    return np.bincount(list(ids), minlength=V).astype(np.int64)


def test_a_large_enough_vocabulary_holds_all_supervised_and_all_control_tokens():
    supervised, control = range(100, 140), range(477, 500)
    t2d = choose_tokens(counts_of(supervised), 128, control)
    assert t2d.sum() == 128
    assert t2d[list(supervised)].all()
    assert t2d[list(control)].all()
    assert coverage(t2d, counts_of(supervised)) == 1.0


def test_room_that_no_counted_token_needs_goes_to_other_control_tokens_before_the_lowest_ids():
    t2d = choose_tokens(counts_of([9, 9]), 4, [300], preferred=[300, 499, 500])
    assert np.flatnonzero(t2d).tolist() == [9, 300, 499, 500]


def test_a_token_that_was_counted_comes_before_control_tokens_that_the_verifier_cannot_emit():
    t2d = choose_tokens(counts_of([9, 10]), 3, [300], preferred=[300, 499])
    assert np.flatnonzero(t2d).tolist() == [9, 10, 300]


def test_a_vocabulary_of_one_is_the_most_frequent_token():
    assert np.flatnonzero(choose_tokens(counts_of([9, 9, 5]), 1, [])).tolist() == [9]


@pytest.mark.parametrize("size", [23, 24, 63, 64, 128, 500, V - 1, V])
def test_every_size_is_exact_and_no_token_is_there_twice(size):
    t2d = choose_tokens(counts_of([*range(100, 140), 477, 478]), size, range(477, 500), range(470, 500))
    targets = np.arange(size) + offsets(t2d)
    assert len(offsets(t2d)) == t2d.sum() == len(set(targets.tolist())) == size
    assert (np.diff(targets) > 0).all()
    assert t2d[477:500].all()


def test_a_full_vocabulary_is_the_identity():
    t2d = choose_tokens(counts_of([3]), V, [7])
    assert t2d.all()
    assert (offsets(t2d) == 0).all()


@pytest.mark.parametrize("size", [0, V + 1, -1])
def test_a_size_that_does_not_fit_is_refused_with_the_range(size):
    with pytest.raises(UserError, match=f"from 1 to {V}") as caught:
        choose_tokens(counts_of([1]), size, [])
    assert caught.value.where == "/draft/vocab_size"


def test_a_size_that_cannot_hold_the_control_tokens_is_refused_with_the_least():
    with pytest.raises(UserError, match="at least 20"):
        choose_tokens(counts_of([1]), 19, range(20))


def test_more_frequent_tokens_come_first_and_ties_go_to_the_lower_id():
    t2d = choose_tokens(counts_of([9, 9, 9, 5, 4, 400]), 4, [300])
    assert np.flatnonzero(t2d).tolist() == [4, 5, 9, 300]


def test_offsets_lead_from_draft_tokens_to_the_verifiers():
    t2d = choose_tokens(counts_of([2, 5, 505]), 3, [])
    assert (np.arange(3) + offsets(t2d)).tolist() == [2, 5, 505]
    assert offsets(t2d).dtype == np.int64


def test_coverage_is_the_counted_share_and_none_without_counts():
    t2d = choose_tokens(counts_of([1, 1, 1]), 1, [])
    assert coverage(t2d, counts_of([1, 1, 1, 2])) == 0.75
    assert coverage(t2d, counts_of([])) is None


def saved_rows(folder, rows, files=1):
    """Rows as (split, ids, mask, last id)."""
    columns = {
        "input_ids": [r[1] for r in rows],
        "loss_mask": [r[2] for r in rows],
        "seq_len": [len(r[1]) for r in rows],
    }
    dataset = Dataset.from_dict(columns)
    dataset.set_format("torch")
    dataset.save_to_disk(str(folder), num_shards=files)
    entries = [{"row_id": f"row-{n}", "split": row[0], "last_id": row[3]} for n, row in enumerate(rows)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def test_supervised_tokens_and_last_ids_are_counted_by_split(tmp_path):
    folder = saved_rows(tmp_path / "d", [("train", [1, 2, 3], [0, 1, 1], 505), ("val", [1, 4], [0, 1], 511)])
    counts = count_supervised(folder, V)
    assert np.flatnonzero(counts.by_split["train"]).tolist() == [2, 3, 505]
    assert np.flatnonzero(counts.by_split["val"]).tolist() == [4, 511]
    assert counts.rows == 2


def test_rows_that_came_as_token_ids_have_no_last_id_to_count(tmp_path):
    folder = saved_rows(tmp_path / "d", [("train", [1, 2, 3], [0, 1, 1], None), ("val", [1, 4], [0, 1], None)])
    assert count_supervised(folder, V).by_split["train"].sum() == 2


def test_counts_do_not_depend_on_how_rows_are_batched(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    rows = []
    for number in range(50):
        ids = random.integers(0, V, random.integers(1, 9)).tolist()
        mask = random.integers(0, 2, len(ids)).tolist()
        rows.append(("val" if number % 5 == 0 else "train", ids, mask, int(random.integers(0, V))))
    expected = {split: np.zeros(V, dtype=np.int64) for split in ("train", "val")}
    for split, ids, mask, last in rows:
        for token in [*(i for i, m in zip(ids[1:], mask[1:], strict=True) if m), last]:
            expected[split][token] += 1
    for size, files in [(1, 1), (7, 3), (1000, 1)]:
        monkeypatch.setattr("datasets.config.DEFAULT_MAX_BATCH_SIZE", size)
        counts = count_supervised(saved_rows(tmp_path / f"d{size}", rows, files), V)
        assert counts.rows == len(rows)
        assert all(np.array_equal(counts.by_split[split], expected[split]) for split in expected)


@pytest.mark.parametrize("bad", [512, -1])
@pytest.mark.parametrize("place", ["supervised", "last"])
def test_an_id_outside_of_the_verifiers_vocabulary_is_refused_with_its_row(tmp_path, bad, place):
    row = ("train", [1, bad], [0, 1], 3) if place == "supervised" else ("train", [1, 2], [0, 1], bad)
    folder = saved_rows(tmp_path / "d", [("train", [1, 2], [0, 1], 3), row])
    with pytest.raises(UserError, match=f"token id {bad} is outside") as caught:
        count_supervised(folder, V)
    assert caught.value.where == "row row-1"


def test_control_tokens_come_from_either_tokenizer_file_and_ends_from_the_configuration(tmp_path):
    decoder = {"480": {"content": "<|im_end|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 481, "content": "<think>"}]}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [490, 491]}))
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 492}, "eos_token_id": None}))
    assert added_tokens(tmp_path) == {480: "<|im_end|>", 481: "<think>"}
    assert emitted_token_ids(tmp_path) == {480, 481, 490, 491, 492}


KIMI_TOKENS = {
    163584: "[BOS]",
    163585: "[EOS]",
    163586: "<|im_end|>",
    163587: "<|im_user|>",
    163588: "<|im_assistant|>",
    163594: "<|im_system|>",
    163595: "<|tool_calls_section_begin|>",
    163599: "<|tool_call_end|>",
    163605: "<|media_pad|>",
    163606: "<think>",
    163607: "</think>",
    163700: "<|reserved_token_163700|>",
    163838: "[UNK]",
    163839: "[PAD]",
}


def test_a_tiktoken_verifier_emits_all_that_its_configuration_names_but_padding_placeholders_and_reserved_ids(tmp_path):
    decoder = {str(id_): {"content": text, "special": id_ < 163606} for id_, text in KIMI_TOKENS.items()}
    tokenizer = {"added_tokens_decoder": decoder, "pad_token": "[PAD]", "unk_token": {"content": "[UNK]"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 163586}))
    text = {"eos_token_id": 163586, "pad_token_id": 163839, "vocab_size": 163840}
    (tmp_path / "config.json").write_text(json.dumps({"media_placeholder_token_id": 163605, "text_config": text}))
    assert emitted_token_ids(tmp_path) == set(KIMI_TOKENS) - {163605, 163700, 163838, 163839}


def test_an_end_of_sequence_that_also_pads_is_kept(tmp_path):
    decoder = {"7": {"content": "<|end|>"}}
    tokenizer = {"added_tokens_decoder": decoder, "pad_token": "<|end|>", "eos_token": "<|end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert emitted_token_ids(tmp_path) == {7}


def test_control_tokens_in_a_file_of_their_own_are_found(tmp_path):
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<think>": 20, "</think>": 21}))
    assert emitted_token_ids(tmp_path) == {20, 21}


@pytest.mark.parametrize("decoder", [{"x": {"content": "a"}}, {"7": {}}, {"7": "text"}, ["a"]])
def test_a_damaged_tokenizer_file_is_refused_by_name(tmp_path, decoder):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    with pytest.raises(UserError, match="without id or text") as caught:
        added_tokens(tmp_path)
    assert caught.value.where == str(tmp_path)
