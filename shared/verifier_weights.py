"""Finds the verifier's embedding, head and final norm in its checkpoint, by their exact names and without torch.

In: a checkpoint's folder. Out: file and key of each tensor that training reads, checked against `config.json`. Only the
headers of safetensors files are read, so that the gateway can look before it accepts a job.

A loader that matches by suffix takes a decoy such as `aux.lm_head.weight` for the head. Here a name counts only with a
prefix that checkpoints really use, and all three tensors come from under the same one. A shard counts only where it
lies in the folder; a link may lead to the blobs of a Hugging Face cache, nowhere else.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import UserError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
EMBEDDING, HEAD, NORM = "embed_tokens.weight", "lm_head.weight", "model.norm.weight"
TRAINED_ON = (EMBEDDING, HEAD, NORM)
# The three tensors' names in each family of checkpoints. The first family whose embedding is there is the one.
FLAT: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        EMBEDDING: ("model.embed_tokens.weight", "embed_tokens.weight"),
        HEAD: ("lm_head.weight",),
        NORM: ("model.norm.weight", "norm.weight"),
    },
)
NESTED: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        EMBEDDING: ("language_model.model.embed_tokens.weight", "language_model.embed_tokens.weight"),
        HEAD: ("language_model.lm_head.weight",),
        NORM: ("language_model.model.norm.weight", "language_model.norm.weight"),
    },
    {
        EMBEDDING: ("model.language_model.embed_tokens.weight",),
        HEAD: ("lm_head.weight", "model.language_model.lm_head.weight"),
        NORM: ("model.language_model.norm.weight",),
    },
)
FLOATS = frozenset({"F32", "BF16", "F16"})
MAX_HEADER_BYTES = 100 * 1024**2  # safetensors' own bound


@dataclass(frozen=True)
class Located:
    """A tensor of the checkpoint: its file, its name there, its shape."""

    file: Path
    key: str
    shape: tuple[int, ...]


def has_weights(folder: Path) -> bool:
    """Whether there is anything to look at: an index or a safetensors file."""
    return (folder / INDEX).is_file() or any(folder.glob("*.safetensors"))


def locate_verifier_tensors(folder: Path, names: Sequence[str] = TRAINED_ON) -> dict[str, Located]:
    """Find tensors by speculators' names. A head that is tied to the embedding is left out: the embedding is the head.

    Raises:
        UserError: a tensor is missing, of another shape than `config.json` says, or ambiguous; a shard is missing,
            damaged, or outside of the folder.
    """
    config = _json_object(folder / "config.json")
    text = config.get("text_config", config)
    shards = _weight_map(folder)
    family = _family(shards, nested="text_config" in config)
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    found = {}
    for name in names:
        if name == HEAD and tied:
            continue  # vLLM does not load one, either
        wanted = family.get(name, (name,))
        key = next((candidate for candidate in wanted if candidate in shards), None)
        if key is None:
            raise UserError(
                f"the verifier's weights have no {name}", where=folder.name, hint=f"looked for {', '.join(wanted)}"
            )
        found[name] = _look_up(folder, shards[key], key)
        _check_shape(name, found[name], text)
    return found


def shard_path(folder: Path, name: str) -> Path:
    """The path of a shard that an index names.

    Raises:
        UserError: it is not a file directly in the folder, or a link that leads out of it.
    """
    if not name or Path(name).name != name or "\\" in name or "\0" in name:
        raise UserError(f"{name!r} does not lie directly in the verifier's folder", where=INDEX)
    path = folder / name
    if not path.is_file():
        hint = "fetch the checkpoint again"
        raise UserError(f"the index names {name!r}, which is not there", where=INDEX, hint=hint)
    home = folder.resolve()
    cache = next((parent for parent in home.parents if parent.name.startswith("models--")), None)
    allowed = [home] if cache is None else [home, cache / "blobs"]
    if not any(path.resolve().is_relative_to(place) for place in allowed):
        raise UserError(
            f"{name!r} is a link that leads out of the verifier's folder",
            where=folder.name,
            hint="put the file itself there, or give the folder that holds it",
        )
    return path


def _weight_map(folder: Path) -> dict[str, str]:
    """File name of each tensor; every file that an index names has been looked at."""
    if not (folder / INDEX).is_file():
        if not (folder / SINGLE).is_file():
            raise UserError("there are no weights", where=folder.name, hint=f"a checkpoint has {INDEX} or {SINGLE}")
        return dict.fromkeys(read_header(shard_path(folder, SINGLE)), SINGLE)
    weights = _json_object(folder / INDEX).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(shard, str) for shard in weights.values()):
        raise UserError("the index of the weights cannot be read", where=INDEX, hint="fetch the checkpoint again")
    for name in sorted(set(weights.values())):
        shard_path(folder, name)
    return weights


def _family(shards: dict[str, str], *, nested: bool) -> dict[str, tuple[str, ...]]:
    ordered = NESTED + FLAT if nested else FLAT + NESTED
    for family in ordered:
        if any(name in shards for name in family[EMBEDDING]):
            return family
    return ordered[0]


def _look_up(folder: Path, shard: str, key: str) -> Located:
    path = shard_path(folder, shard)
    entry = read_header(path).get(key)
    if entry is None:
        raise UserError(f"{shard} has no {key}, which the index says it holds", where=INDEX)
    if entry["dtype"] not in FLOATS:
        raise UserError(f"{key} is {entry['dtype']}; training reads {', '.join(sorted(FLOATS))}", where=shard)
    return Located(path, key, tuple(entry["shape"]))


def _check_shape(name: str, found: Located, text: dict[str, Any]) -> None:
    hidden, vocab = text.get("hidden_size"), text.get("vocab_size")
    expected = {EMBEDDING: (vocab, hidden), HEAD: (vocab, hidden), NORM: (hidden,)}.get(name)
    if expected is not None and None not in expected and found.shape != expected:
        raise UserError(
            f"{found.key} has shape {list(found.shape)}, config.json says {list(expected)}", where=found.file.name
        )


def read_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file: dtype, shape and offsets of each tensor, by name.

    Raises:
        UserError: the file is not one, or is shorter or longer than its header says.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 2 <= size <= MAX_HEADER_BYTES:
                raise ValueError("no header")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        complete = path.stat().st_size == 8 + size + end
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError("this is no safetensors file", where=path.name, hint="fetch the checkpoint again") from None
    if not complete:
        raise UserError("the file is damaged: its size is not what its header says", where=path.name)
    return dict(header)


def _json_object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"it cannot be read: {error}", where=path.name, hint="fetch the checkpoint again") from None
    if not isinstance(document, dict):
        raise UserError("it is not a JSON object", where=path.name)
    return document
