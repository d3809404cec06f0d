"""The verifier's added tokens (control tokens, reasoning tags), read without its tokenizer's code."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shared.errors import UserError

# Ids that stand for embeddings of pictures, films and sounds: `media_placeholder_token_id`, `image_token_index`, ...
PLACEHOLDER_FIELD = re.compile(r"(media|image|video|audio|vision)\w*_token_(id|index)")
RESERVED_NAME = re.compile(r"reserved|unused", re.IGNORECASE)


def added_tokens(verifier: Path) -> dict[int, str]:
    """Ids and texts of the added tokens: `tokenizer_config.json` (`added_tokens_decoder`; all that a tiktoken-style
    tokenizer such as Kimi's has), `added_tokens.json`, and `tokenizer.json`.

    Raises:
        UserError: one of the files is not JSON, or names a token without id or text.
    """
    decoder = _read_json(verifier / "tokenizer_config.json").get("added_tokens_decoder") or {}
    listed = _read_json(verifier / "tokenizer.json").get("added_tokens") or []
    try:
        tokens = {int(id_): str(token["content"]) for id_, token in decoder.items()}
        tokens |= {int(id_): str(text) for text, id_ in _read_json(verifier / "added_tokens.json").items()}
        return tokens | {int(token["id"]): str(token["content"]) for token in listed}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(
            "the tokenizer's files name an added token without id or text",
            where=str(verifier),
            hint="fetch the checkpoint again",
        ) from None


def emitted_token_ids(verifier: Path) -> set[int]:
    """Ids that a draft must be able to say: the added tokens that the verifier can write, and all its ends of sequence.

    Not among them: padding and the unknown token, placeholders of media, and names without use (`reserved`,
    `unused`). Nothing has taught the verifier to write these; in the ids that it reads they stand for something else.
    Of Kimi-K2.5's 256 ids from 163,584 on the tokenizer names 23 in its files; the others are reserved.

    Raises:
        UserError: see `added_tokens`.
    """
    tokens = added_tokens(verifier)
    documents = [document for name in ("generation_config.json", "config.json") for document in _parts(verifier / name)]
    silent_texts = set(_named(verifier, "pad_token", "unk_token"))
    silent = {id_ for id_, text in tokens.items() if text in silent_texts or RESERVED_NAME.search(text)}
    for document in documents:
        silent |= {id_ for key, id_ in document.items() if key == "pad_token_id" or PLACEHOLDER_FIELD.fullmatch(key)}
    return set(tokens) - silent | end_token_ids(verifier)


def end_token_ids(verifier: Path) -> set[int]:
    """Ids that end what the verifier writes: every end of sequence of its configuration and of its tokenizer's.

    Raises:
        UserError: see `added_tokens`.
    """
    texts = set(_named(verifier, "eos_token"))
    ends = {id_ for id_, text in added_tokens(verifier).items() if text in texts}
    for name in ("generation_config.json", "config.json"):
        for document in _parts(verifier / name):
            given = document.get("eos_token_id")
            ends |= {id_ for id_ in (given if isinstance(given, list) else [given]) if isinstance(id_, int)}
    return ends


def _named(verifier: Path, *keys: str) -> Iterator[str]:
    """Texts that the tokenizer's configuration gives for roles such as `pad_token`."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        document = _read_json(verifier / name)
        for key in keys:
            value = document.get(key)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                yield text


def _parts(path: Path) -> Iterator[dict[str, Any]]:
    """A configuration and the text model's part of it."""
    document = _read_json(path)
    yield document
    text = document.get("text_config")
    if isinstance(text, dict):
        yield text


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"is not JSON: {error}", where=str(path)) from None
    return document if isinstance(document, dict) else {}
