"""The verifier's added tokens (control tokens, reasoning tags), read without its tokenizer's code."""

import json
from pathlib import Path
from typing import Any

from shared.errors import UserError


def added_tokens(verifier: Path) -> dict[int, str]:
    """Ids and texts of the added tokens, from `tokenizer_config.json` (`added_tokens_decoder`) and `tokenizer.json`.

    Raises:
        UserError: one of the files is not JSON.
    """
    decoder = _read_json(verifier / "tokenizer_config.json").get("added_tokens_decoder") or {}
    tokens = {int(id_): str(token["content"]) for id_, token in decoder.items()}
    for token in _read_json(verifier / "tokenizer.json").get("added_tokens") or []:
        tokens[int(token["id"])] = str(token["content"])
    return tokens


def emitted_token_ids(verifier: Path) -> set[int]:
    """Ids that the draft must be able to say: added tokens, and every end-of-sequence id of the configuration."""
    ids = set(added_tokens(verifier))
    for name in ("generation_config.json", "config.json"):
        document = _read_json(verifier / name)
        for part in (document, document.get("text_config") or {}):
            eos = part.get("eos_token_id")
            ids.update([eos] if isinstance(eos, int) else eos or [])
    return ids


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"is not JSON: {error}", where=str(path)) from None
    return document if isinstance(document, dict) else {}
