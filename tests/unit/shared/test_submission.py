"""What a job document is checked for before it is accepted, with a verifier's folder at hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.artifact_store import LocalArtifactStore
from shared.presets import resolve
from shared.submission import SubmissionError, check_submission

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


@pytest.mark.parametrize("shard", ["gone.safetensors", "../outside.safetensors", "/etc/passwd", "a\\b"])
def test_an_index_that_names_what_is_not_in_the_folder_is_refused(
    shard: str, store: LocalArtifactStore, folder: Path
) -> None:
    (folder.parent / "outside.safetensors").write_bytes(b"")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": shard}}))
    assert "/verifier/model" in refused(store, document(folder))
    (folder / "model-1.safetensors").write_bytes(b"")
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "model-1.safetensors"}}))
    check_submission(resolve(document(folder)), store, URL)


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
