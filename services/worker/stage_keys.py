"""Content keys of stages: equal inputs and equal parameters give equal keys, whatever the job is called.

A key is the SHA-256 of the stage's name and version, the digests of what it reads, and the parts of the job document
that can change its result. A finished stage whose key exists in the store is reused.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.schemas.job import Stage
from shared.schemas.manifest import canonical_digest
from shared.schemas.spec import JobSpec

# Raise one when its stage's results change.
STAGE_VERSIONS: dict[Stage, int] = {
    Stage.PREPARE: 2,
    Stage.GENERATE: 1,
    Stage.CAPTURE: 2,
    Stage.VOCAB: 2,
    Stage.TRAIN: 2,
    Stage.EVALUATE: 2,
    Stage.PUBLISH: 2,
}
UPSTREAM: dict[Stage, tuple[Stage, ...]] = {
    Stage.PREPARE: (),
    Stage.GENERATE: (Stage.PREPARE,),
    Stage.CAPTURE: (Stage.PREPARE, Stage.GENERATE),
    Stage.VOCAB: (Stage.CAPTURE,),
    Stage.TRAIN: (Stage.CAPTURE, Stage.VOCAB),
    Stage.EVALUATE: (Stage.PREPARE, Stage.CAPTURE, Stage.VOCAB, Stage.TRAIN),
    Stage.PUBLISH: (Stage.PREPARE, Stage.GENERATE, Stage.CAPTURE, Stage.VOCAB, Stage.TRAIN, Stage.EVALUATE),
}
FINGERPRINT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tiktoken.model",
    "chat_template.jinja",
    "special_tokens_map.json",
    "model.safetensors.index.json",
)
SMALL_WEIGHTS_BYTES = 64 * 1024**2
KEY_CHARACTERS = 32  # 128 bits


def stage_key(stage: Stage, inputs: Mapping[str, str], parameters: Mapping[str, Any]) -> str:
    """The content key of a stage run.

    Args:
        inputs: digests of what the stage reads, by name.
        parameters: what `stage_parameters` returned.
    """
    content = {"stage": stage, "version": STAGE_VERSIONS[stage], "inputs": dict(inputs), "parameters": dict(parameters)}
    return canonical_digest(content)[:KEY_CHARACTERS]


def stage_parameters(stage: Stage, spec: JobSpec) -> dict[str, Any]:
    """The parts of a job document on which the results of a stage depend, as JSON values."""
    data = spec.data.model_dump(mode="json", exclude={"dataset", "concurrency"})
    sampling = data.pop("sampling")
    capture = spec.capture.model_dump(mode="json")
    rows = {name: data[name] for name in ("max_seq_len", "on_truncated", "max_bad_fraction", "shard_rows", "generate")}
    match stage:
        case Stage.PREPARE:
            choice = ("generate", "limit", "system_prompt", "on_control_tokens", "deduplicate", "max_seq_len")
            return {name: data[name] for name in (*choice, "val_ratio", "seed")}
        case Stage.GENERATE:
            return {"sampling": sampling, "capture": capture, **rows}
        case Stage.CAPTURE:
            return {"capture": capture, **rows}
        case Stage.VOCAB:
            return {"vocab_size": spec.draft.vocab_size}
        case Stage.TRAIN:
            train = spec.train.model_dump(mode="json", exclude={"checkpoint_every_s", "num_workers"})
            draft = spec.draft.model_dump(mode="json", exclude={"vocabulary"})  # the vocab stage's input
            return {"draft": draft, "train": train, "integrations": list(spec.integrations)}
        case Stage.EVALUATE:
            evaluate = spec.evaluate.model_dump(mode="json", exclude={"concurrency"})
            return {"evaluate": evaluate, "sampling": sampling}
        case Stage.PUBLISH:
            return {"algorithm": spec.draft.algorithm}


def verifier_fingerprint(folder: Path) -> str:
    """SHA-256 over what decides a verifier's answers: config, tokenizer, template, and its weights' index.

    Weights are hashed where they are small; for a large checkpoint their names and sizes stand for them.
    """
    digest = hashlib.sha256()
    for name in FINGERPRINT_FILES:
        if (folder / name).is_file():
            digest.update(name.encode() + b"\0" + (folder / name).read_bytes())
    for weights in sorted(folder.glob("*.safetensors")):
        size = weights.stat().st_size
        digest.update(f"{weights.name}:{size}".encode())
        if size <= SMALL_WEIGHTS_BYTES:
            digest.update(weights.read_bytes())
    return digest.hexdigest()
