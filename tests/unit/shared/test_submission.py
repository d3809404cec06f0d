"""What a job document is checked for before it is accepted, with a verifier's folder at hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from shared.artifact_store import LocalArtifactStore
from shared.errors import UserError
from shared.presets import pointer_errors, resolve
from shared.submission import SubmissionError, check_submission, require_fitting_shape
from shared.verifier_config import capture_layer_ids, read_verifier_config

CONFIG = {
    "num_hidden_layers": 6,
    "hidden_size": 128,
    "vocab_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 384,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
}
DATASET = "ds_" + "0" * 20
URL = "http://verifier:8000"


@pytest.fixture
def store(tmp_path: Path) -> LocalArtifactStore:
    store = LocalArtifactStore(tmp_path / "store")
    store.write(f"datasets/{DATASET}/dataset.json", b"{}")
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "verifier"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"text_config": CONFIG}))
    return folder


def document(folder: Path, **fields: Any) -> dict[str, Any]:
    return {"preset": "tiny", "verifier": {"model": str(folder)}, "data": {"dataset": DATASET}} | fields


def refused(store: LocalArtifactStore, content: dict[str, Any], url: str | None = URL) -> dict[str, str]:
    with pytest.raises(SubmissionError) as caught:
        check_submission(resolve(content), store, url)
    return {error.pointer: error.message for error in caught.value.errors}


def test_the_fleets_verifier_is_taken_where_none_is_named(store: LocalArtifactStore, folder: Path) -> None:
    assert check_submission(resolve(document(folder)), store, URL).verifier.endpoint == URL
    named = document(folder, verifier={"model": str(folder), "endpoint": "http://other"})
    assert check_submission(resolve(named), store, URL).verifier.endpoint == "http://other"
    managed = document(folder, verifier={"model": str(folder), "managed": {}})
    assert check_submission(resolve(managed), store, URL).verifier.endpoint is None


def test_no_way_to_a_verifier_is_refused_with_what_to_do(store: LocalArtifactStore, folder: Path) -> None:
    assert "managed" in refused(store, document(folder), url=None)["/verifier"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"draft": {"vocab_size": 513}}, "/draft/vocab_size"),
        ({"draft": {"num_attention_heads": 3, "num_key_value_heads": 2}}, "/draft/num_key_value_heads"),
        ({"draft": {"head_dim": 31}}, "/draft/head_dim"),
        ({"draft": {"head_dim": 32, "num_attention_heads": 6, "num_key_value_heads": 6}}, "/draft/num_attention_heads"),
        ({"capture": {"layer_ids": [1, 1, 2]}}, "/capture/layer_ids"),
    ],
)
def test_a_draft_that_cannot_be_is_refused(
    fields: dict[str, Any], pointer: str, store: LocalArtifactStore, folder: Path
) -> None:
    assert pointer in refused(store, document(folder, **fields))


def test_a_vocabulary_as_large_as_the_verifiers_is_fine(store: LocalArtifactStore, folder: Path) -> None:
    check_submission(resolve(document(folder, draft={"vocab_size": 512})), store, URL)


def test_a_layer_beyond_the_verifiers_is_refused(store: LocalArtifactStore, folder: Path) -> None:
    pointers = refused(store, document(folder, capture={"layer_ids": [1, 3, 6]}))
    assert any(pointer.startswith("/capture/layer_ids") for pointer in pointers)
    check_submission(resolve(document(folder, capture={"layer_ids": [1, 3, 5]})), store, URL)


@pytest.mark.parametrize("config", [None, "{", "[]", "{}", '{"text_config": {"hidden_size": -1}}'])
def test_a_folder_without_a_usable_config_is_refused(
    config: str | None, store: LocalArtifactStore, folder: Path
) -> None:
    (folder / "config.json").unlink()
    if config is not None:
        (folder / "config.json").write_text(config)
    assert "/verifier/model" in refused(store, document(folder))


@pytest.mark.parametrize("model", ["/" + "a" * 300, "a" * 300])
def test_a_path_that_cannot_be_looked_at_is_refused(model: str, store: LocalArtifactStore) -> None:
    assert "/verifier/model" in refused(store, {"verifier": {"model": model}, "data": {"dataset": DATASET}})


def test_a_folder_beside_the_gateway_is_no_hub_id(
    store: LocalArtifactStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    said = refused(store, {"verifier": {"model": folder.name}, "data": {"dataset": DATASET}})
    assert "absolute path" in said["/verifier/model"]


@pytest.mark.parametrize(
    "url", ["http://", "http://a b", "http://a\r\nb", "http://a:99999", "http://a:x", "http://a/v1", "http://a/v1/"]
)
def test_an_endpoint_that_is_no_base_url_is_refused(url: str, store: LocalArtifactStore, folder: Path) -> None:
    wrong = document(folder, verifier={"model": str(folder), "endpoint": url})
    assert "/verifier/endpoint" in refused(store, wrong)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://a.b/verifiers/kimi/", "http://[::1]:8000"])
def test_an_endpoint_may_have_a_path_and_be_an_address(url: str, store: LocalArtifactStore, folder: Path) -> None:
    check_submission(resolve(document(folder, verifier={"model": str(folder), "endpoint": url})), store, URL)


def test_all_that_is_wrong_is_said_at_once(store: LocalArtifactStore, folder: Path) -> None:
    wrong = document(folder, data={"dataset": "ds_gone"}, draft={"vocab_size": 999}, capture={"layer_ids": []})
    assert {"/data/dataset", "/draft/vocab_size", "/capture/layer_ids"} <= refused(store, wrong).keys()


def test_a_hub_model_that_is_not_here_is_left_to_the_worker(
    store: LocalArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    check_submission(resolve({"data": {"dataset": DATASET}}), store, URL)


@pytest.mark.data
@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"draft": {"head_dim": 10**12}}, "/draft/head_dim"),
        ({"draft": {"intermediate_size": 10**15}}, "/draft/intermediate_size"),
        ({"draft": {"num_attention_heads": 10**9}}, "/draft/num_attention_heads"),
        ({"draft": {"num_key_value_heads": 10**9}}, "/draft/num_key_value_heads"),
        ({"draft": {"max_position_embeddings": 10**18}}, "/draft/max_position_embeddings"),
        ({"draft": {"rope_theta": 1e300}}, "/draft/rope_theta"),
        ({"draft": {"rms_norm_eps": 5}}, "/draft/rms_norm_eps"),
        ({"draft": {"sliding_window": 10**18}}, "/draft/sliding_window"),
        ({"draft": {"num_layers": 100}}, "/draft/num_layers"),
        ({"draft": {"head_dim": 0}}, "/draft/head_dim"),
        ({"draft": {"vocab_size": 0}}, "/draft/vocab_size"),
        ({"metadata": {"k" * 65: "x"}}, f"/metadata/{'k' * 65}"),
    ],
)
def test_an_absurd_size_is_refused_with_its_pointer(fields: dict[str, Any], pointer: str, folder: Path) -> None:
    with pytest.raises(ValidationError) as caught:
        resolve(document(folder, **fields))
    assert [error["pointer"] for error in pointer_errors(caught.value)] == [pointer]


@pytest.mark.data
@pytest.mark.parametrize(
    ("verifier", "draft", "pointer"),
    [
        ({"hidden_size": 2**20, "intermediate_size": 2**20}, {"num_layers": 16}, "/draft/intermediate_size"),
        ({"hidden_size": 2**16, "num_attention_heads": 1024}, {"head_dim": 512, "num_layers": 16}, "/draft/head_dim"),
        ({"hidden_size": 10**12}, {}, "/draft"),
        ({"vocab_size": 10**12}, {}, "/draft"),
    ],
)
def test_a_draft_larger_than_any_machine_is_refused_with_its_number_of_parameters(
    verifier: dict[str, Any], draft: dict[str, Any], pointer: str, store: LocalArtifactStore, folder: Path
) -> None:
    large = {**CONFIG, **verifier}
    (folder / "config.json").write_text(json.dumps({"text_config": large}))
    shape = {"num_attention_heads": large["num_attention_heads"], "num_key_value_heads": None, **draft}
    said = refused(store, document(folder, draft={"intermediate_size": None, **shape}))
    assert pointer in said
    assert "parameters" in said[pointer]


@pytest.mark.data
@pytest.mark.parametrize("layers", range(1, 7))
def test_verifiers_of_one_to_six_layers_get_distinct_ids_or_a_refusal_that_says_what_to_give(
    layers: int, store: LocalArtifactStore, folder: Path
) -> None:
    (folder / "config.json").write_text(json.dumps({"text_config": {**CONFIG, "num_hidden_layers": layers}}))
    without = document(folder, capture={})
    if layers >= 4:
        check_submission(resolve(without), store, URL)
        ids = capture_layer_ids(None, layers)
        assert len(set(ids)) == len(ids) == 4
        assert all(1 <= one <= layers for one in ids)
        return
    said = refused(store, without)["/capture/layer_ids"]
    assert "give layer_ids yourself" in said
    given = list(range(1, layers))
    if given:  # what the refusal says to give is accepted; the final layer comes by itself
        check_submission(resolve(document(folder, capture={"layer_ids": given})), store, URL)
        assert capture_layer_ids(given, layers) == [*given, layers]


@pytest.mark.data
@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"data": {"dataset": DATASET, "max_seq_len": 513}}, "/data/max_seq_len"),
        ({"data": {"dataset": DATASET, "sampling": {"max_tokens": 512}}}, "/data/sampling/max_tokens"),
        ({"evaluate": {"max_tokens": 600}}, "/evaluate/max_tokens"),
    ],
)
def test_lengths_beyond_the_verifiers_context_are_refused(
    fields: dict[str, Any], pointer: str, store: LocalArtifactStore, folder: Path
) -> None:
    said = refused(store, document(folder, **fields))
    assert list(said) == [pointer]
    assert "512" in said[pointer]
    check_submission(resolve(document(folder, data={"dataset": DATASET, "max_seq_len": 512})), store, URL)


@pytest.mark.data
def test_a_managed_verifier_is_as_long_as_asked_and_no_longer_than_its_context(
    store: LocalArtifactStore, folder: Path
) -> None:
    def managed(**fields: int) -> dict[str, Any]:
        return document(folder, verifier={"model": str(folder), "managed": fields})

    assert check_submission(resolve(managed()), store, None).verifier.managed.max_model_len == 512  # type: ignore[union-attr]
    assert "/verifier/managed/max_model_len" in refused(store, managed(max_model_len=513))
    short = refused(store, managed(max_model_len=128))
    assert {"/data/max_seq_len", "/data/sampling/max_tokens"} == set(short)


@pytest.mark.data
def test_a_context_stretched_by_yarn_counts(store: LocalArtifactStore, folder: Path) -> None:
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps({"text_config": {**CONFIG, "rope_scaling": rope}}))
    check_submission(resolve(document(folder, data={"dataset": DATASET, "max_seq_len": 2048})), store, URL)
    assert "/data/max_seq_len" in refused(store, document(folder, data={"dataset": DATASET, "max_seq_len": 2049}))


@pytest.mark.data
@pytest.mark.parametrize("url", ["http://me:secret@verifier:8000", "http://secret@verifier", "http://:secret@verifier"])
def test_an_endpoint_with_a_password_is_refused_and_not_repeated(
    url: str, store: LocalArtifactStore, folder: Path
) -> None:
    said = refused(store, document(folder, verifier={"model": str(folder), "endpoint": url}))
    assert "password" in said["/verifier/endpoint"]
    assert "secret" not in str(said)


@pytest.mark.data
@pytest.mark.parametrize("revision", [None, "main", "v1.0", "abc1234", "A" * 40, "g" * 40, "a" * 41])
def test_remote_code_needs_a_commit(revision: str | None, store: LocalArtifactStore) -> None:
    def remote(pinned: str | None) -> dict[str, Any]:
        verifier = {"model": "some/model", "revision": pinned, "managed": {"trust_remote_code": True}}
        return {"verifier": verifier, "data": {"dataset": DATASET}}

    assert "40 hexadecimal" in refused(store, remote(revision))["/verifier/revision"]
    check_submission(resolve(remote("0123456789abcdef" * 2 + "01234567")), store, None)


@pytest.mark.data
@pytest.mark.parametrize(
    "text",
    [
        {"max_position_embeddings": "long"},
        {"rms_norm_eps": -1},
        {"rms_norm_eps": float("nan")},
        {"rope_theta": [1]},
        {"rope_scaling": "yarn"},
        {"rope_scaling": {"type": "yarn"}},
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}},
        {"num_attention_heads": True},
        {"num_attention_heads": None},
    ],
)
def test_a_config_of_unexpected_values_is_refused_and_never_breaks_the_service(
    text: dict[str, Any], store: LocalArtifactStore, folder: Path
) -> None:
    (folder / "config.json").write_text(json.dumps({"text_config": {**CONFIG, **text}}))
    absent = {"num_attention_heads": None, "num_key_value_heads": None, "head_dim": None}
    said = refused(store, document(folder, draft=absent))
    assert set(said) <= {"/verifier/model", "/draft/rope_theta"}


@pytest.mark.data
@pytest.mark.parametrize("whole", ["[1]", '{"text_config": [1]}', '{"text_config": null}', "[" * 100_000])
def test_a_config_of_another_form_is_refused(whole: str, store: LocalArtifactStore, folder: Path) -> None:
    (folder / "config.json").write_text(whole)
    assert "/verifier/model" in refused(store, document(folder))


@pytest.mark.data
@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"capture": {"layer_ids": [1, 6]}}, "/capture/layer_ids/1"),
        ({"draft": {"vocab_size": 513}}, "/draft/vocab_size"),
        ({"draft": {"head_dim": 31}}, "/draft/head_dim"),
    ],
)
def test_what_the_gateway_could_not_see_the_worker_refuses_when_the_job_starts(
    fields: dict[str, Any], pointer: str, folder: Path
) -> None:
    config = read_verifier_config(folder)
    require_fitting_shape(resolve(document(folder)), config)
    with pytest.raises(UserError) as refusal:
        require_fitting_shape(resolve(document(folder, **fields)), config)
    assert refusal.value.where == pointer
