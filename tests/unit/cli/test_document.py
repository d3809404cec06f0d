"""A job document out of files and flags."""

import pytest

from services.cli.document import apply_overrides, load_document, set_value
from services.cli.errors import BadInput


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.lr=1e-3", {"train": {"lr": 1e-3, "epochs": 2}}),
        ("train.epochs=5", {"train": {"epochs": 5}}),
        ("capture.layer_ids=[1, 2]", {"train": {"epochs": 2}, "capture": {"layer_ids": [1, 2]}}),
        ("draft.norm_output=false", {"train": {"epochs": 2}, "draft": {"norm_output": False}}),
        ("train.max_steps=null", {"train": {"epochs": 2, "max_steps": None}}),
        ("metadata.run=7", {"train": {"epochs": 2}, "metadata": {"run": "7"}}),
        ("name=1e-3", {"train": {"epochs": 2}, "name": "1e-3"}),
        ("verifier.revision=12e4567", {"train": {"epochs": 2}, "verifier": {"revision": "12e4567"}}),
        ("verifier.revision=2026-01-31", {"train": {"epochs": 2}, "verifier": {"revision": "2026-01-31"}}),
        ("train.lr=nan", {"train": {"epochs": 2, "lr": "nan"}}),
        ("verifier.model=a=b", {"train": {"epochs": 2}, "verifier": {"model": "a=b"}}),
    ],
)
def test_an_override_sets_one_field(override: str, expected: dict) -> None:
    document = {"train": {"epochs": 2}}
    assert apply_overrides(document, [override]) == expected
    assert document == {"train": {"epochs": 2}}


@pytest.mark.parametrize("override", ["train", "=1", "train..lr=1", "train.epochs.x=1", "train.lr=[1", "train.lr=.nan"])
def test_an_override_that_cannot_be_meant_is_refused(override: str) -> None:
    with pytest.raises(BadInput):
        apply_overrides({"train": {"epochs": 2}}, [override])


def test_a_value_set_to_nothing_can_be_filled() -> None:
    assert set_value({"data": None}, ["data", "dataset"], "ds") == {"data": {"dataset": "ds"}}


NO_JSON = ["a: .inf", "a: !!timestamp 2026-01-31", "a: !!binary aGk=", "a: &a [*a]", "a: !!timestamp 2026-02-30"]


@pytest.mark.parametrize(
    "text", ["[1, 2]", "just text", "", "a: [", "\x00", "!!python/object:os.system {}", "? {a: 1}\n: 1", *NO_JSON]
)
def test_a_file_that_is_no_document_is_refused(text: str, tmp_path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"job\.yaml"):
        load_document(path)


@pytest.mark.parametrize(
    "text", ["train: {lr: 1e-3}\nname: a\ntrain: {epochs: 2}\n", '{"name": "a",\n"x": 1, "name": "b"}']
)
def test_a_name_that_is_there_twice_is_refused_with_its_place(text: str, tmp_path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"job\.yaml, line [23], column \d+: .*(train|name) is there twice"):
        load_document(path)


def test_a_merged_mapping_may_be_overridden(tmp_path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "train: &base {epochs: 2, lr: 1}\nother: {deep: &own {<<: *base, lr: 3}}\nlast: {<<: *own, epochs: 5}\n"
    )
    assert load_document(path)["last"] == {"epochs": 5, "lr": 3}


def test_dates_stay_text(tmp_path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: 2026-02-30\nmetadata: {day: 2026-01-31, at: 2026-01-31 10:00:00}\n")
    assert load_document(path) == {
        "name": "2026-02-30",
        "metadata": {"day": "2026-01-31", "at": "2026-01-31 10:00:00"},
    }


def test_json_is_fine_too(tmp_path) -> None:
    path = tmp_path / "job.json"
    path.write_text('\ufeff{"train": {"lr": 1e-3}}')
    assert load_document(path)["train"].keys() == {"lr"}
