"""Which verifier it is, by the content of its checkpoint: what manifests name, and what makes stage keys differ.

In: the folder of a checkpoint. Out: a `VerifierIdentity` with the hash of each file that decides what the verifier
answers. Large weights are not read whole: their size and three samples stand for them.
"""

import hashlib
import json
from pathlib import Path

from shared.artifact_store import file_sha256
from shared.schemas.manifest import VerifierIdentity, canonical_digest
from shared.verifier_config import public_model_name

CONFIG_FILES = ("config.json", "generation_config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tiktoken.model", "special_tokens_map.json")
TEMPLATE_FILE = "chat_template.jinja"
INDEX_FILE = "model.safetensors.index.json"
SMALL_WEIGHTS_BYTES = 64 * 1024**2
SAMPLE_BYTES = 1024**2


def identify_verifier(folder: Path, revision: str | None = None) -> VerifierIdentity:
    """Hash what decides a verifier's answers: config, tokenizer, chat template, and its weights.

    Raises:
        OSError: a file cannot be read.
    """
    small = [name for name in (*CONFIG_FILES, *TOKENIZER_FILES, TEMPLATE_FILE, INDEX_FILE) if (folder / name).is_file()]
    files = {name: file_sha256(folder / name) for name in small}
    weights = {path.name: _weights_mark(path) for path in sorted(folder.glob("*.safetensors"))}
    tokenizer = {name: files[name] for name in TOKENIZER_FILES if name in files}
    return VerifierIdentity(
        name=public_model_name(str(folder)),
        revision=revision,
        files=files | weights,
        config_sha256=files.get("config.json"),
        tokenizer_sha256=canonical_digest(tokenizer) if tokenizer else None,
        chat_template_sha256=files.get(TEMPLATE_FILE) or _embedded_template(folder),
        weights_sha256=canonical_digest(weights) if weights else None,
    )


def _weights_mark(path: Path) -> str:
    """SHA-256 of a small file; of a large one its size, with the SHA-256 of its first, middle and last MiB."""
    size = path.stat().st_size
    if size <= SMALL_WEIGHTS_BYTES:
        return file_sha256(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for start in (0, size // 2, size - SAMPLE_BYTES):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return f"{size}:{digest.hexdigest()}"


def _embedded_template(folder: Path) -> str | None:
    """SHA-256 of a chat template that stands in `tokenizer_config.json`."""
    try:
        template = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return canonical_digest(template)
