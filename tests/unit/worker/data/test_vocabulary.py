"""The draft's vocabulary: what it holds, what it covers, what is refused."""

import json

import numpy as np
import pytest
from datasets import Dataset

from services.worker.data.vocabulary import choose_tokens, coverage, offsets
from services.worker.stages.vocab import count_supervised
from shared.data.control_tokens import added_tokens, emitted_token_ids
from shared.errors import UserError

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


def saved_rows(folder, rows):
    """Rows as (split, ids, mask, last id)."""
    columns = {
        "input_ids": [r[1] for r in rows],
        "loss_mask": [r[2] for r in rows],
        "seq_len": [len(r[1]) for r in rows],
    }
    Dataset.from_dict(columns).save_to_disk(str(folder))
    entries = [{"row_id": f"row-{n}", "split": row[0], "last_id": row[3]} for n, row in enumerate(rows)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def test_supervised_tokens_and_last_ids_are_counted_by_split(tmp_path):
    folder = saved_rows(tmp_path / "d", [("train", [1, 2, 3], [0, 1, 1], 505), ("val", [1, 4], [0, 1], 511)])
    counts = count_supervised(folder, V)
    assert np.flatnonzero(counts["train"]).tolist() == [2, 3, 505]
    assert np.flatnonzero(counts["val"]).tolist() == [4, 511]


@pytest.mark.parametrize("bad", [512, -1])
def test_an_id_outside_of_the_verifiers_vocabulary_is_refused_with_its_row(tmp_path, bad):
    folder = saved_rows(tmp_path / "d", [("train", [1, 2], [0, 1], 3), ("train", [1, bad], [0, 1], 3)])
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
