"""The draft's vocabulary at submit: every size that cannot work, and every file that does not fit, is refused there."""

import json
from typing import Any

import numpy as np
import pytest

from shared.artifact_store import LocalArtifactStore
from shared.presets import resolve
from shared.submission import SubmissionError, check_submission
from tests.support.stage_runs import CONTROL_TOKENS, VOCAB, write_verifier
from tests.support.vocabularies import arrays, bad_npy, npy, pt, write_vocabulary

pytestmark = pytest.mark.data
DATASET, GIVEN = "ds_" + "0" * 20, "ds_" + "1" * 20
URL = "http://verifier:8000"
BAD = bad_npy()


@pytest.fixture
def place(tmp_path):
    store = LocalArtifactStore(tmp_path / "store")
    store.write(f"datasets/{DATASET}/dataset.json", record_of(DATASET, "conversations"))
    return store, write_verifier(tmp_path / "verifier")


def record_of(dataset_id: str, kind: str) -> bytes:
    record = {"id": dataset_id, "kind": kind, "name": "x", "rows": 2, "bytes": 9, "sha256": "0" * 64}
    return json.dumps({**record, "created_at": "2026-01-01T00:00:00Z"}).encode()


def submit(place: Any, files: dict[str, bytes] | None = None, **draft: Any) -> Any:
    store, verifier = place
    if files is not None:
        write_vocabulary(store.root / "datasets" / GIVEN, files)
        draft["vocabulary"] = GIVEN
    shape = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    document = {"preset": "tiny", "verifier": {"model": str(verifier)}, "data": {"dataset": DATASET}}
    return check_submission(resolve({**document, "draft": {**shape, **draft}}), store, URL)


def refused(place: Any, files: dict[str, bytes] | None = None, **draft: Any) -> dict[str, str]:
    with pytest.raises(SubmissionError) as caught:
        submit(place, files, **draft)
    return {error.pointer: error.message for error in caught.value.errors}


def good(tokens: Any = None) -> dict[str, bytes]:
    t2d, d2t = arrays(*([tokens] if tokens else []))
    return {"t2d.npy": npy(t2d), "d2t.npy": npy(d2t)}


@pytest.mark.parametrize("size", [len(CONTROL_TOKENS), 128, VOCAB])
def test_sizes_that_work_are_taken(place, size):
    assert submit(place, vocab_size=size).draft.vocab_size == size


@pytest.mark.parametrize(
    ("size", "message"),
    [(1, "at least 4"), (len(CONTROL_TOKENS) - 1, "at least 4"), (VOCAB + 1, f"at most {VOCAB}"), (10**9, "at most")],
)
def test_sizes_that_cannot_work_are_refused_with_the_right_ones(place, size, message):
    errors = refused(place, vocab_size=size)
    assert message in errors["/draft/vocab_size"]


def test_a_vocabulary_of_none_is_no_document():
    with pytest.raises(ValueError, match="vocab_size"):
        resolve({"data": {"dataset": DATASET}, "draft": {"vocab_size": 0}})


def test_the_size_follows_a_given_vocabulary_whatever_the_preset_says(place):
    spec = submit(place, good())
    assert (spec.draft.vocab_size, spec.draft.vocabulary) == (54, GIVEN)


def test_an_equal_size_may_be_given_with_it(place):
    assert submit(place, good(), vocab_size=54).draft.vocab_size == 54


def test_another_size_is_refused(place):
    assert "has 54 tokens, not 128" in refused(place, good(), vocab_size=128)["/draft/vocab_size"]


def test_a_vocabulary_of_tensors_needs_its_size_and_is_taken_with_it(place):
    t2d, d2t = arrays()
    files = {"t2d.npy": npy(t2d), "d2t.pt": pt(d2t)}
    assert "is not known before" in refused(place, files)["/draft/vocab_size"]
    assert submit(place, vocab_size=54, vocabulary=GIVEN).draft.vocab_size == 54


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_refused_before_the_verifier_works_for_them(place, kind):
    t2d, d2t, message = BAD[kind]
    errors = refused(place, {"t2d.npy": t2d, "d2t.npy": d2t})
    assert errors.keys() <= {"/draft/vocabulary", "/draft/vocab_size"}
    assert any(message in text or "each of the verifier's" in text for text in errors.values())


def test_a_vocabulary_without_the_verifiers_control_tokens_is_refused(place):
    assert "480 <|im_end|>" in refused(place, good(range(100, 150)))["/draft/vocabulary"]


def test_a_vocabulary_that_is_not_there_or_is_none_is_refused(place):
    store, _ = place
    absent = "ds_" + "9" * 20
    assert "there is no dataset" in refused(place, vocabulary=absent)["/draft/vocabulary"]
    store.write(f"datasets/{absent}/dataset.json", record_of(absent, "conversations"))
    assert "not a vocabulary" in refused(place, vocabulary=absent)["/draft/vocabulary"]
    assert refused(place, vocabulary="ds_../../x").keys() == {"/draft/vocabulary"}


def test_the_shape_of_d2t_decides_nothing_before_it_is_checked(place):
    files = {"t2d.npy": npy(arrays()[0]), "d2t.npy": npy(np.zeros((3, 3), dtype=int))}
    assert refused(place, files).keys() == {"/draft/vocabulary"}
