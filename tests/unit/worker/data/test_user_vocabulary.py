"""Vocabulary files of users: checked as our own are made, and nothing in them is run."""

import json

import numpy as np
import pytest

from services.worker.data.user_vocabulary import read_user_vocabulary
from shared.errors import UserError
from tests.support.vocabularies import (
    CONTROL,
    TRAP,
    V,
    arrays,
    bad_npy,
    bad_pt,
    good_files,
    npy,
    write_vocabulary,
)

pytestmark = pytest.mark.data
REQUIRED = {id_: f"<|{id_}|>" for id_ in CONTROL}
GOOD, BAD_NPY, BAD_PT = good_files(), bad_npy(), bad_pt()


@pytest.fixture(autouse=True)
def nothing_runs():
    TRAP.unlink(missing_ok=True)
    yield
    assert not TRAP.exists()


def read(folder, files):
    write_vocabulary(folder, files)
    return read_user_vocabulary(folder, V, REQUIRED)


@pytest.mark.parametrize("kind", GOOD)
def test_a_vocabulary_reads_the_same_however_it_is_written(kind, tmp_path):
    t2d = read(tmp_path / "ds", GOOD[kind])
    assert t2d.dtype == np.bool_
    assert np.array_equal(t2d, arrays()[0])


def test_the_identity_is_a_vocabulary(tmp_path):
    t2d, d2t = arrays(range(V))
    assert read(tmp_path / "ds", {"t2d.npy": npy(t2d), "d2t.npy": npy(d2t)}).all()


@pytest.mark.parametrize("kind", BAD_NPY)
def test_a_bad_npy_file_is_refused_by_name(kind, tmp_path):
    t2d, d2t, message = BAD_NPY[kind]
    with pytest.raises(UserError) as caught:
        read(tmp_path / "ds", {"t2d.npy": t2d, "d2t.npy": d2t})
    assert message in caught.value.message + caught.value.hint
    assert caught.value.where in ("t2d.npy", "d2t.npy")


@pytest.mark.parametrize("kind", BAD_PT)
def test_a_bad_pt_file_is_refused_by_name(kind, tmp_path):
    content, message = BAD_PT[kind]
    with pytest.raises(UserError) as caught:
        read(tmp_path / "ds", {"t2d.npy": npy(arrays()[0]), "d2t.pt": content})
    assert message in caught.value.message
    assert caught.value.where == "d2t.pt"


def test_a_control_token_that_is_left_out_is_named(tmp_path):
    t2d, d2t = arrays([*range(100, 150), 480, 482, 483])
    with pytest.raises(UserError, match=r"leaves out control tokens .*: 481 <\|481\|> \("):
        read(tmp_path / "ds", {"t2d.npy": npy(t2d), "d2t.npy": npy(d2t)})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["t2d.npy"], "no d2t"),
        (["d2t.pt"], "no t2d"),
        (["t2d.npy", "t2d.pt", "d2t.npy"], "2 files with t2d"),
        (["vocab_mapping.pt", "d2t.npy"], "2 files with d2t"),
        ([], "no t2d"),
    ],
)
def test_a_folder_must_hold_each_array_once(names, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read(tmp_path / "ds", dict.fromkeys(names, b"x"))


def test_a_pt_of_both_must_hold_both(tmp_path):
    with pytest.raises(UserError, match="has no d2t") as caught:
        read(tmp_path / "ds", {"vocab_mapping.pt": GOOD["pt with named tensors"]["t2d.pt"]})
    assert caught.value.where == "vocab_mapping.pt"


def test_messages_are_plain_text_of_bounded_length(tmp_path):
    for number, (t2d, d2t, _) in enumerate(BAD_NPY.values()):
        with pytest.raises(UserError) as caught:
            read(tmp_path / f"ds{number}", {"t2d.npy": t2d, "d2t.npy": d2t})
        assert len(json.dumps(str(caught.value))) < 1000
