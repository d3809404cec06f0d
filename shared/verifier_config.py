"""Reads a verifier's `config.json` without its code: the few numbers that decide whether a job can work."""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from shared.errors import UserError
from shared.verifier_settings import default_layer_ids


class VerifierConfig(BaseModel):
    """The text model's dimensions; `raw` is the text part of `config.json` as it stands."""

    model_config = ConfigDict(frozen=True)

    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    raw: dict[str, Any]

    @property
    def context(self) -> int | None:
        """The most tokens, prompt and answer together, that vLLM lets the model have; None where nothing is said."""
        stated = self.raw.get("max_position_embeddings")
        rope = self.raw.get("rope_parameters") or self.raw.get("rope_scaling")
        stretched = None
        if isinstance(rope, dict) and isinstance(rope.get("factor"), int | float):
            original = rope.get("original_max_position_embeddings")
            stretched = int(original * rope["factor"]) if isinstance(original, int) else None
        return max((number for number in (stated, stretched) if isinstance(number, int)), default=None)


def find_model_folder(model: str, revision: str | None = None) -> Path | None:
    """Return the folder of a model on this machine, or None where only its hub id is known here.

    An absolute or existing path is taken as it is. A hub id is looked up in the local Hugging Face cache; nothing is
    downloaded.

    Raises:
        UserError: `model` is a path and there is no such folder.
    """
    if model.startswith(("/", "./", "../", "~")) or Path(model).is_dir():
        try:
            folder = Path(model).expanduser()
            found = folder.is_dir()
        except (OSError, RuntimeError):  # a name too long, a folder that may not be entered, an unknown ~user
            found = False
        if not found:
            hint = "give a folder that the workers can see, or a hub id"
            raise UserError("there is no such verifier folder", where=model, hint=hint)
        return folder
    snapshots = _hub_cache() / f"models--{model.replace('/', '--')}"
    reference = snapshots / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    folder = snapshots / "snapshots" / commit if commit else snapshots / "absent"
    return folder if (folder / "config.json").is_file() else None


def public_model_name(model: str) -> str:
    """What others call a model: its hub id, also where `model` is its folder in the Hugging Face cache; else the name
    of its folder. Never a path of this machine."""
    if not model.startswith(("/", "./", "../", "~")):
        return model
    for part in reversed(Path(model).parts):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return Path(model).expanduser().resolve().name


def read_verifier_config(folder: Path) -> VerifierConfig:
    """Read `config.json`, nested (`text_config`) or flat.

    Raises:
        UserError: the file is missing, is not JSON, or lacks a dimension.
    """
    path = folder / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "give the folder of a complete checkpoint"
        raise UserError("the verifier's folder has no config.json", where=str(folder), hint=hint) from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"config.json is not JSON: {error}", where=str(path)) from None
    except OSError as error:
        raise UserError(f"config.json cannot be read: {error.strerror}", where=str(path)) from None
    text = document.get("text_config", document) if isinstance(document, dict) else {}
    text = text if isinstance(text, dict) else {}
    missing = [name for name in ("num_hidden_layers", "hidden_size", "vocab_size") if not _is_count(text.get(name))]
    if missing:
        raise UserError(
            f"config.json has no positive {', '.join(missing)}",
            where=str(path),
            hint="the text model's dimensions stand at the top level or in text_config",
        )
    return VerifierConfig(
        num_hidden_layers=text["num_hidden_layers"],
        hidden_size=text["hidden_size"],
        vocab_size=text["vocab_size"],
        raw=text,
    )


def visible_verifier_config(model: str, revision: str | None = None) -> VerifierConfig | None:
    """A verifier's dimensions, where this machine can see its checkpoint."""
    try:
        folder = find_model_folder(model, revision)
        return None if folder is None else read_verifier_config(folder)
    except (UserError, OSError):
        return None


def capture_layer_ids(given: list[int] | None, num_hidden_layers: int) -> list[int]:
    """Layers whose states are captured: the auxiliary ones, ascending, then the final one (`num_hidden_layers`).

    Args:
        given: auxiliary layers that a job asks for, or None for low, middle and high.

    Raises:
        UserError: an id is out of range or given twice, or there are too few layers to choose from.
    """
    if given is None:
        try:
            return default_layer_ids(num_hidden_layers)
        except ValueError as error:
            raise UserError(str(error), where="/capture/layer_ids") from None
    allowed = range(1, num_hidden_layers)
    if not given or len(set(given)) != len(given) or not set(given) <= set(allowed):
        raise UserError(
            f"auxiliary layer ids {given} do not fit a verifier of {num_hidden_layers} layers",
            where="/capture/layer_ids",
            hint=f"give distinct ids from 1 to {num_hidden_layers - 1}; the final layer is added by itself",
        )
    return [*sorted(given), num_hidden_layers]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _hub_cache() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache)
    return Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser() / "hub"
