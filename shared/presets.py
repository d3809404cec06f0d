"""Presets: complete the document that a person submits.

`kimi-k2.5` is the default; `tiny` trains on a verifier of the same shape that any machine can run. The numbers of the
Kimi-K2.5 draft are those of the public K2 and K2.5 EAGLE-3 heads: 64 heads of 128 (not 7168 / 64 = 112), intermediate
size 18432, 32,000 of 163,840 tokens, auxiliary layers 2, 30 and 58.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shared.errors import UserError
from shared.schemas.spec import JobSpec

TINY_VERIFIER = Path(__file__).resolve().parent.parent / "assets" / "tiny-verifier"

KIMI_K25: dict[str, Any] = {
    "verifier": {"model": "moonshotai/Kimi-K2.5"},
    "data": {
        "sampling": {"temperature": 1.0, "top_p": 0.95, "max_tokens": 2048, "thinking": True},
        "max_seq_len": 2048,
        "val_ratio": 0.05,
        "concurrency": 64,
    },
    "capture": {"mode": "auto", "layer_ids": [2, 30, 58]},
    "draft": {
        "algorithm": "eagle3",
        "vocab_size": 32000,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "head_dim": 128,
        "intermediate_size": 18432,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
    },
    "train": {"epochs": 10, "lr": 3e-5, "scheduler": "cosine", "pack_length": 8192, "ttt_steps": 3, "gpus": 8},
    "evaluate": {"num_speculative_tokens": 3, "baseline": "offline", "gpus": 8},
}

TINY: dict[str, Any] = {
    "verifier": {"model": str(TINY_VERIFIER)},
    "data": {
        "sampling": {"temperature": 0.0, "top_p": 1.0, "max_tokens": 160, "thinking": True},
        "max_seq_len": 256,
        "val_ratio": 0.1,
        "concurrency": 16,
    },
    "capture": {"mode": "inline"},
    "draft": {
        "algorithm": "eagle3",
        "vocab_size": 320,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "intermediate_size": 384,
    },
    "train": {
        "epochs": 8,
        "lr": 2e-3,
        "scheduler": "cosine",
        "pack_length": 512,
        "ttt_steps": 3,
        "num_workers": 0,
        "gpus": 0,
        "checkpoint_every_s": 10,
    },
    "evaluate": {"num_speculative_tokens": 3, "max_prompts": 32, "baseline": "vllm", "gpus": 0},
}

PRESETS: dict[str, dict[str, Any]] = {"kimi-k2.5": KIMI_K25, "tiny": TINY}
DEFAULT_PRESET = "kimi-k2.5"


def resolve(document: dict[str, Any]) -> JobSpec:
    """Complete a partial job document with its preset.

    Raises:
        UserError: the preset does not exist.
        pydantic.ValidationError: the completed document is not valid.
    """
    name = document.get("preset", DEFAULT_PRESET)
    if not isinstance(name, str) or name not in PRESETS:
        raise UserError(
            f"there is no preset {name!r}", where="/preset", hint=f"presets are: {', '.join(sorted(PRESETS))}"
        )
    return JobSpec.model_validate({**_completed(PRESETS[name], document), "preset": name})


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge two JSON objects; where both have a value, `over` wins, and objects merge in turn."""
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        merged[key] = merge(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def _completed(preset: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Both merged; but the size of a given vocabulary is its own, not the preset's."""
    merged = merge(preset, document)
    asked = document.get("draft")
    if isinstance(asked, dict) and asked.get("vocabulary") is not None and "vocab_size" not in asked:
        merged["draft"].pop("vocab_size", None)
    return merged


def pointer_errors(error: ValidationError) -> list[dict[str, str]]:
    """A pydantic error as field errors with JSON pointers (RFC 6901)."""
    return [
        {
            "pointer": "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in _place(item["loc"])),
            "message": item["msg"].removeprefix("Value error, "),
        }
        for item in error.errors(include_url=False, include_input=False)
    ]


def _place(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Where it is: pydantic marks a wrong name of a mapping with one part more."""
    return loc[:-1] if loc[-1:] == ("[key]",) else loc
