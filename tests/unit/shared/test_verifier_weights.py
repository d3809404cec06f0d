"""The verifier's embedding, head and norm: the right tensors, or a refusal when the job is submitted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from shared.artifact_store import LocalArtifactStore
from shared.errors import UserError
from shared.presets import resolve
from shared.submission import SubmissionError, check_submission
from shared.verifier_weights import EMBEDDING, HEAD, INDEX, NORM, SINGLE, locate_verifier_tensors, read_header

pytestmark = pytest.mark.data

HIDDEN, VOCAB = 16, 64
FLAT = {EMBEDDING: "model.embed_tokens.weight", HEAD: "lm_head.weight", NORM: "model.norm.weight"}
KIMI = {name: f"language_model.{key}" for name, key in FLAT.items()}
NEWER = {
    EMBEDDING: "model.language_model.embed_tokens.weight",
    HEAD: "lm_head.weight",
    NORM: "model.language_model.norm.weight",
}
LAYOUTS = {"flat": FLAT, "kimi": KIMI, "newer": NEWER}
SHAPES = {EMBEDDING: (VOCAB, HIDDEN), HEAD: (VOCAB, HIDDEN), NORM: (HIDDEN,)}


def tensors(names: dict[str, str]) -> dict[str, Any]:
    return {key: np.zeros(SHAPES[name], dtype=np.float32) for name, key in names.items()}


def checkpoint(folder: Path, shards: dict[str, dict[str, Any]], *, nested: bool = True, **text: Any) -> Path:
    """Write `config.json` and the shards: one `model.safetensors`, or several with an index."""
    folder.mkdir(parents=True)
    dimensions = {
        "num_hidden_layers": 6,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "num_attention_heads": 2,
        "max_position_embeddings": 4096,
        **text,
    }
    (folder / "config.json").write_text(json.dumps({"text_config": dimensions} if nested else dimensions))
    for name, content in shards.items():
        save_file(content, folder / name)
    if SINGLE not in shards:
        write_index(folder, {key: shard for shard, content in shards.items() for key in content})
    return folder


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def sharded(folder: Path, names: dict[str, str] = KIMI, **text: Any) -> Path:
    """A checkpoint in two shards: embedding and norm in the first, head in the second."""
    all_tensors = tensors(names)
    head = {names[HEAD]: all_tensors.pop(names[HEAD])}
    return checkpoint(folder, {"one.safetensors": all_tensors, "two.safetensors": head}, **text)


def submit(folder: Path, tmp_path: Path) -> None:
    store = LocalArtifactStore(tmp_path / "store")
    dataset = "ds_" + "0" * 20
    store.write(f"datasets/{dataset}/dataset.json", b"{}")
    document = {
        "preset": "tiny",
        "verifier": {"model": str(folder)},
        "data": {"dataset": dataset},
        "draft": {"vocab_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8},
    }
    check_submission(resolve(document), store, "http://verifier:8000")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("several", [False, True])
def test_each_tensor_is_found_in_one_file_and_in_shards(tmp_path: Path, layout: str, several: bool) -> None:
    names = LAYOUTS[layout]
    nested = layout != "flat"
    folder = tmp_path / "v"
    if several:
        sharded(folder, names, nested=nested)
    else:
        checkpoint(folder, {SINGLE: tensors(names)}, nested=nested)
    found = locate_verifier_tensors(folder)
    assert {name: located.key for name, located in found.items()} == names
    assert {name: located.shape for name, located in found.items()} == SHAPES
    submit(folder, tmp_path)


@pytest.mark.parametrize("decoy", ["aux.lm_head.weight", "lm_head.weight", "a.lm_head.weight", "mtp.0.lm_head.weight"])
def test_a_decoy_head_is_not_taken_wherever_it_stands(tmp_path: Path, decoy: str) -> None:
    """Shorter or earlier than the real name, in the same file or in the first shard."""
    false = {decoy: np.ones((VOCAB, HIDDEN), dtype=np.float32)}
    one = checkpoint(tmp_path / "one", {SINGLE: {**false, **tensors(KIMI)}})
    assert locate_verifier_tensors(one)[HEAD].key == KIMI[HEAD]
    several = checkpoint(tmp_path / "several", {"a.safetensors": false, "b.safetensors": tensors(KIMI)})
    assert locate_verifier_tensors(several)[HEAD].key == KIMI[HEAD]
    assert locate_verifier_tensors(several)[HEAD].file.name == "b.safetensors"


def test_a_decoy_alone_is_no_head(tmp_path: Path) -> None:
    content = {
        **tensors({EMBEDDING: KIMI[EMBEDDING], NORM: KIMI[NORM]}),
        "aux.lm_head.weight": np.zeros((VOCAB, HIDDEN)),
    }
    folder = checkpoint(tmp_path / "v", {SINGLE: content})
    with pytest.raises(SubmissionError) as refused:
        submit(folder, tmp_path)
    assert refused.value.errors[0].pointer == "/verifier/model"
    assert "lm_head.weight" in refused.value.errors[0].message


@pytest.mark.parametrize("with_head", [False, True])
def test_a_tied_head_is_the_embedding_as_in_vllm_even_where_another_one_lies_there(
    tmp_path: Path, with_head: bool
) -> None:
    names = KIMI if with_head else {name: key for name, key in KIMI.items() if name != HEAD}
    folder = checkpoint(tmp_path / "v", {SINGLE: tensors(names)}, tie_word_embeddings=True)
    assert set(locate_verifier_tensors(folder)) == {EMBEDDING, NORM}
    submit(folder, tmp_path)


def name_absent(folder: Path) -> None:
    (folder / "two.safetensors").unlink()


def name_parent(folder: Path) -> None:
    (folder / "two.safetensors").rename(folder.parent / "two.safetensors")
    write_index(folder, read_index(folder) | {KIMI[HEAD]: "../two.safetensors"})


def name_absolute(folder: Path) -> None:
    write_index(folder, read_index(folder) | {KIMI[HEAD]: str(folder / "two.safetensors")})


def name_backslash(folder: Path) -> None:
    write_index(folder, read_index(folder) | {KIMI[HEAD]: "..\\two.safetensors"})


def name_nothing(folder: Path) -> None:
    write_index(folder, read_index(folder) | {KIMI[HEAD]: ""})


def link_outside(folder: Path) -> None:
    outside = folder.parent / "elsewhere.safetensors"
    (folder / "two.safetensors").rename(outside)
    (folder / "two.safetensors").symlink_to(outside)


def link_relative_outside(folder: Path) -> None:
    (folder / "two.safetensors").rename(folder.parent / "elsewhere.safetensors")
    (folder / "two.safetensors").symlink_to("../elsewhere.safetensors")


def link_to_nothing(folder: Path) -> None:
    (folder / "two.safetensors").unlink()
    (folder / "two.safetensors").symlink_to("gone")


def truncate(folder: Path) -> None:
    shard = folder / "two.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])


def empty(folder: Path) -> None:
    (folder / "two.safetensors").write_bytes(b"")


def pickle_in_disguise(folder: Path) -> None:
    (folder / "two.safetensors").write_bytes(b"\x80\x04\x95" + b"x" * 64)


def mistake_shard(folder: Path) -> None:
    write_index(folder, read_index(folder) | {KIMI[HEAD]: "one.safetensors"})


def other_shape(folder: Path) -> None:
    save_file({KIMI[HEAD]: np.zeros((VOCAB, HIDDEN + 1), dtype=np.float32)}, folder / "two.safetensors")


def integers(folder: Path) -> None:
    save_file({KIMI[HEAD]: np.zeros((VOCAB, HIDDEN), dtype=np.int8)}, folder / "two.safetensors")


def index_of_numbers(folder: Path) -> None:
    (folder / INDEX).write_text('{"weight_map": {"lm_head.weight": 7}}')


def index_that_is_none(folder: Path) -> None:
    (folder / INDEX).write_text("[1, 2")


def read_index(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return found


@pytest.mark.parametrize(
    "spoil",
    [
        name_absent,
        name_parent,
        name_absolute,
        name_backslash,
        name_nothing,
        link_outside,
        link_relative_outside,
        link_to_nothing,
        truncate,
        empty,
        pickle_in_disguise,
        mistake_shard,
        other_shape,
        integers,
        index_of_numbers,
        index_that_is_none,
    ],
)
def test_a_checkpoint_that_is_not_whole_is_refused_at_submit(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    folder = sharded(tmp_path / "v")
    submit(folder, tmp_path)
    spoil(folder)
    with pytest.raises(SubmissionError) as refused:
        submit(folder, tmp_path)
    assert [error.pointer for error in refused.value.errors] == ["/verifier/model"]
    with pytest.raises(UserError):
        locate_verifier_tensors(folder)


def test_links_of_a_hub_cache_lead_to_its_blobs_and_are_followed(tmp_path: Path) -> None:
    home = tmp_path / "hub" / "models--some--model"
    snapshot = sharded(home / "snapshots" / ("a" * 40))
    (home / "blobs").mkdir()
    for number, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(home / "blobs" / str(number))
        path.symlink_to(f"../../blobs/{number}")
    assert set(locate_verifier_tensors(snapshot)) == {EMBEDDING, HEAD, NORM}
    submit(snapshot, tmp_path)


def test_a_folder_that_is_itself_a_link_is_the_folder_it_leads_to(tmp_path: Path) -> None:
    sharded(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    submit(tmp_path / "link", tmp_path)


def test_a_header_that_lies_about_its_length_is_read_in_bounds(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(UserError, match="no safetensors file"):
        read_header(path)
