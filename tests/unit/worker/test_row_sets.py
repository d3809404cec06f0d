"""Which runs make equal rows: found by an index in the store, whatever else their jobs differ in."""

import pytest

from services.worker.row_sets import RowSets
from shared.artifact_store import LocalArtifactStore
from shared.schemas.job import Stage, now
from shared.schemas.manifest import Manifest
from shared.stage_keys import rowset_key
from tests.support.stage_runs import job_spec

pytestmark = pytest.mark.data

LAYERS = [1, 2, 3, 4]


def key(stage=Stage.GENERATE, verifier="v", layers=LAYERS, **changes):
    return rowset_key(stage, verifier, layers, job_spec("/models/v", **changes))


@pytest.mark.parametrize("stage", [Stage.GENERATE, Stage.CAPTURE])
@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"limit": 5}},
        {"data": {"val_ratio": 0.5, "seed": 3}},
        {"data": {"dataset": "ds_11111111111111111111", "shard_rows": 7, "concurrency": 2}},
        {"capture": {"mode": "prefill"}},
        {"train": {"epochs": 3}},
    ],
)
def test_what_does_not_change_a_row_does_not_change_its_set(stage, changes):
    assert key(stage, **changes) == key(stage)


@pytest.mark.parametrize(
    "changes",
    [
        {"verifier": "other"},
        {"layers": [2, 4]},
        {"data": {"sampling": {"temperature": 0.5}}},
        {"data": {"sampling": {"thinking": False}}},
        {"data": {"max_seq_len": 64}},
        {"data": {"on_truncated": "drop"}},
        {"data": {"generate": False}},
    ],
)
def test_what_changes_a_row_changes_its_set(changes):
    if isinstance(changes.get("verifier"), str):
        assert key(verifier="other") != key()
    else:
        assert key(**changes) != key()


def test_the_stored_dtype_belongs_to_captured_rows_alone():
    stored = {"capture": {"dtype": "bfloat16"}}
    assert key(**stored) == key()
    assert key(Stage.CAPTURE, **stored) != key(Stage.CAPTURE)
    assert key(Stage.VOCAB) is None


@pytest.fixture
def store(tmp_path):
    return LocalArtifactStore(tmp_path / "store")


def begin(store, run, part="work"):
    folder = store.folder(f"stages/generate/{run}/attempts/run_1/{part}")
    return folder, RowSets(store).siblings(Stage.GENERATE, run, "set")


def test_a_run_finds_the_folders_of_the_others_in_its_set(store):
    first, none = begin(store, "aa")
    assert none == []
    second, found = begin(store, "bb")
    assert found == [first]
    done = store.folder("stages/generate/aa/attempts/run_1/out")
    manifest = Manifest(
        stage=Stage.GENERATE,
        key="aa",
        token="t",
        job_id="j",
        root="stages/generate/aa/attempts/run_1/out",
        inputs={},
        parameters={},
        files=[],
        seconds=1,
        created_at=now(),
    )
    store.write("stages/generate/aa/manifest.json", manifest.model_dump_json().encode())
    assert set(begin(store, "cc")[1]) == {done, second}
    assert RowSets(store).siblings(Stage.GENERATE, "dd", "other-set") == []
    assert RowSets(store).siblings(Stage.VOCAB, "aa", None) == []


def test_runs_that_were_cleared_away_leave_the_index(store):
    begin(store, "aa")
    store.delete("stages/generate/aa")
    assert begin(store, "bb")[1] == []
    assert list(store.list("rowsets/set")) == ["bb"]
