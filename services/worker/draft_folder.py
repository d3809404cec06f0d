"""Checks a draft folder before anything uses it: every tensor, every field that a loader would otherwise guess.

Wrong drafts load silently in vLLM (missing layer ids become 2, 30, 58; a missing `d2t` accepts nothing), so that what
is not written down or does not fit is an error here.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from shared.errors import EyrieError, InternalError, UserError

WEIGHTS = "model.safetensors"
ALLOWED_SUFFIXES = frozenset({".json", ".safetensors", ".md"})
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FLAGS = ("norm_before_residual", "norm_before_fc", "norm_output")


@dataclass(frozen=True)
class ExpectedDraft:
    """What a job says its draft must be."""

    shape: dict[str, Any]
    draft_vocab_size: int
    layer_ids: list[int]
    norm_before_residual: bool
    norm_before_fc: bool
    norm_output: bool
    dtype: str


@dataclass(frozen=True)
class DraftCheck:
    """What a checked draft is: numbers of tensors and parameters, bytes of weights, and its main dimensions."""

    tensors: int
    parameters: int
    weight_bytes: int
    dtype: str
    draft_vocab_size: int
    layer_ids: tuple[int, ...]


def check_draft_folder(
    folder: Path, verifier_config: dict[str, Any], expected: ExpectedDraft | None = None
) -> DraftCheck:
    """Check names, shapes, types, finiteness, vocabulary mapping and configuration of a draft.

    Args:
        folder: a speculators checkpoint of algorithm `eagle3`.
        verifier_config: the verifier's `config.json`, nested or flat.
        expected: what the job asked for; absent for a draft that somebody brought.

    Raises:
        UserError: a brought draft is wrong; `where` names the file and the tensor or field.
        InternalError: our own draft (with `expected`) is wrong.
    """
    return _Checker(folder, InternalError if expected else UserError).run(verifier_config, expected)


class _Checker:
    def __init__(self, folder: Path, error: type[EyrieError]) -> None:
        self.folder, self.error = folder, error

    def run(self, verifier_config: dict[str, Any], expected: ExpectedDraft | None) -> DraftCheck:
        self._check_files()
        config = self._config()
        text = verifier_config.get("text_config", verifier_config)
        self._check_config(config, text)
        if expected is not None:
            self._check_expected(config, expected)
        shapes = dict(expected_shapes(config))
        parameters, weight_bytes = self._check_tensors(config, shapes)
        return DraftCheck(
            tensors=len(shapes),
            parameters=parameters,
            weight_bytes=weight_bytes,
            dtype=config["dtype"],
            draft_vocab_size=config["draft_vocab_size"],
            layer_ids=tuple(config["eagle_aux_hidden_state_layer_ids"]),
        )

    def _refuse(self, message: str, where: str) -> EyrieError:
        return self.error(message, where=f"{self.folder.name}/{where}")

    def _check_files(self) -> None:
        for path in sorted(self.folder.rglob("*")):
            if path.is_symlink() or (path.is_file() and path.suffix not in ALLOWED_SUFFIXES):
                raise self._refuse("only safetensors, JSON and Markdown are accepted", path.name)

    def _config(self) -> dict[str, Any]:
        try:
            config = json.loads((self.folder / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise self._refuse(f"cannot be read: {error}", "config.json") from None
        if not isinstance(config, dict):
            raise self._refuse("is not a JSON object", "config.json")
        for path, value in _strings(config):
            if value.startswith(("/", "~", "./", "../", "file:")) or ":\\" in value:
                raise self._refuse("holds a path of some machine", f"config.json{path}")
        return config

    def _check_config(self, config: dict[str, Any], text: dict[str, Any]) -> None:
        if config.get("speculators_model_type") != "eagle3":
            raise self._refuse("is not an eagle3 draft", "config.json/speculators_model_type")
        for flag in FLAGS:
            if not isinstance(config.get(flag), bool):
                raise self._refuse("must be true or false, explicitly", f"config.json/{flag}")
        if config.get("dtype") not in DTYPES:
            raise self._refuse(f"must be one of {', '.join(DTYPES)}", "config.json/dtype")
        if not (config.get("speculators_config") or {}).get("verifier", {}).get("name_or_path"):
            raise self._refuse("names no verifier", "config.json/speculators_config/verifier")
        self._check_decoder(config, text)
        self._check_layer_ids(config.get("eagle_aux_hidden_state_layer_ids"), text["num_hidden_layers"])
        size = config.get("draft_vocab_size")
        if not isinstance(size, int) or not 1 <= size <= text["vocab_size"]:
            raise self._refuse(
                f"must lie between 1 and {text['vocab_size']}, is {size}",
                "config.json/draft_vocab_size",
            )

    def _check_layer_ids(self, ids: Any, layers: int) -> None:
        well_formed = isinstance(ids, list) and ids and all(isinstance(one, int) for one in ids)
        if not well_formed or len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) > layers:
            raise self._refuse(
                f"must be distinct layer ids between 0 and {layers}, is {ids}",
                "config.json/eagle_aux_hidden_state_layer_ids",
            )

    def _check_decoder(self, config: dict[str, Any], text: dict[str, Any]) -> None:
        decoder = config.get("transformer_layer_config")
        where = "config.json/transformer_layer_config"
        if not isinstance(decoder, dict):
            raise self._refuse("is missing", where)
        for name in (
            "head_dim",
            "num_attention_heads",
            "num_key_value_heads",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "vocab_size",
        ):
            if not isinstance(decoder.get(name), int) or decoder[name] < 1:
                raise self._refuse("must be a positive number, explicitly", f"{where}/{name}")
        for name in ("hidden_size", "vocab_size"):
            if decoder[name] != text[name]:
                raise self._refuse(f"is {decoder[name]}, the verifier's is {text[name]}", f"{where}/{name}")

    def _check_expected(self, config: dict[str, Any], expected: ExpectedDraft) -> None:
        pairs: dict[str, tuple[Any, Any]] = {
            "draft_vocab_size": (config["draft_vocab_size"], expected.draft_vocab_size),
            "eagle_aux_hidden_state_layer_ids": (
                config["eagle_aux_hidden_state_layer_ids"],
                expected.layer_ids,
            ),
            "dtype": (config["dtype"], expected.dtype),
            **{flag: (config[flag], getattr(expected, flag)) for flag in FLAGS},
            **{
                f"transformer_layer_config/{name}": (
                    config["transformer_layer_config"].get(name),
                    value,
                )
                for name, value in expected.shape.items()
            },
        }
        for name, (found, wanted) in pairs.items():
            if found != wanted:
                raise self._refuse(f"is {found}, should be {wanted}", f"config.json/{name}")

    def _check_tensors(self, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> tuple[int, int]:
        parameters = weight_bytes = 0
        mapping: dict[str, torch.Tensor] = {}
        try:
            with safe_open(self.folder / WEIGHTS, framework="pt", device="cpu") as file:
                self._check_names(set(file.keys()), set(shapes))
                for name, shape in shapes.items():
                    tensor = file.get_tensor(name)
                    self._check_tensor(name, tensor, shape, DTYPES[config["dtype"]])
                    weight_bytes += tensor.numel() * tensor.element_size()
                    if name in ("t2d", "d2t"):
                        mapping[name] = tensor
                    else:
                        parameters += tensor.numel()
        except (SafetensorError, OSError) as error:
            raise self._refuse(f"cannot be read: {error}", WEIGHTS) from None
        if mapping:
            self._check_mapping(mapping["t2d"], mapping["d2t"])
        return parameters, weight_bytes

    def _check_names(self, found: set[str], wanted: set[str]) -> None:
        if missing := sorted(wanted - found):
            raise self._refuse("is missing", f"{WEIGHTS}/{missing[0]}")
        if unknown := sorted(found - wanted):
            raise self._refuse("belongs to no part of the draft", f"{WEIGHTS}/{unknown[0]}")

    def _check_tensor(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        wanted = {"t2d": torch.bool, "d2t": torch.int64}.get(name, dtype)
        where = f"{WEIGHTS}/{name}"
        if tuple(tensor.shape) != shape:
            raise self._refuse(f"has shape {list(tensor.shape)}, should be {list(shape)}", where)
        if tensor.dtype != wanted:
            raise self._refuse(f"is {tensor.dtype}, should be {wanted}", where)
        if wanted == dtype and not bool(torch.isfinite(tensor).all()):
            raise self._refuse("has values that are not finite", where)

    def _check_mapping(self, t2d: torch.Tensor, d2t: torch.Tensor) -> None:
        """`d2t` holds offsets: draft token i is the verifier's token i + d2t[i], in ascending order."""
        targets = torch.arange(len(d2t)) + d2t
        if not torch.equal(targets, torch.nonzero(t2d).flatten()):
            raise self._refuse("does not name the tokens that t2d marks", f"{WEIGHTS}/d2t")


def expected_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors of an eagle3 draft with that configuration."""
    decoder = config["transformer_layer_config"]
    hidden, vocab, draft_vocab = (
        decoder["hidden_size"],
        decoder["vocab_size"],
        config["draft_vocab_size"],
    )
    fused = hidden * len(config["eagle_aux_hidden_state_layer_ids"])
    yield "embed_tokens.weight", (vocab, hidden)
    yield "lm_head.weight", (draft_vocab, hidden)
    yield "fc.weight", (hidden, fused)
    yield "norm.weight", (hidden,)
    if config["norm_before_fc"]:
        yield "input_norm.weight", (fused,)
    if draft_vocab != vocab:
        yield "t2d", (vocab,)
        yield "d2t", (draft_vocab,)
    for index in range(decoder["num_hidden_layers"]):
        yield from _layer_shapes(index, decoder)


def _layer_shapes(index: int, decoder: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = decoder["hidden_size"], decoder["intermediate_size"]
    queries = decoder["num_attention_heads"] * decoder["head_dim"]
    keys = decoder["num_key_value_heads"] * decoder["head_dim"]
    # The first layer reads token embedding and hidden state side by side.
    width = 2 * hidden if index == 0 else hidden
    prefix = f"layers.{index}."
    if index == 0:
        yield f"{prefix}hidden_norm.weight", (hidden,)
    yield f"{prefix}input_layernorm.weight", (hidden,)
    yield f"{prefix}post_attention_layernorm.weight", (hidden,)
    yield f"{prefix}self_attn.q_proj.weight", (queries, width)
    yield f"{prefix}self_attn.k_proj.weight", (keys, width)
    yield f"{prefix}self_attn.v_proj.weight", (keys, width)
    yield f"{prefix}self_attn.o_proj.weight", (hidden, queries)
    yield f"{prefix}mlp.gate_proj.weight", (inner, hidden)
    yield f"{prefix}mlp.up_proj.weight", (inner, hidden)
    yield f"{prefix}mlp.down_proj.weight", (hidden, inner)


def _strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, f"{path}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, f"{path}/{index}")
    elif isinstance(value, str):
        yield path, value
