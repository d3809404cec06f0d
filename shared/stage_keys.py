"""Content keys of stages: equal inputs and equal parameters give equal keys, whatever the job is called.

A key is the SHA-256 of the stage's name and version, the digests of what it reads, and the parts of the job document
that can change its result. A finished stage whose key exists in the store is reused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.schemas.job import Stage
from shared.schemas.manifest import canonical_digest
from shared.schemas.spec import JobSpec

# Raise one when its stage's results change.
STAGE_VERSIONS: dict[Stage, int] = {
    Stage.PREPARE: 2,
    Stage.GENERATE: 2,
    Stage.CAPTURE: 3,
    Stage.VOCAB: 2,
    Stage.TRAIN: 2,
    Stage.EVALUATE: 2,
    Stage.PUBLISH: 3,
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
KEY_CHARACTERS = 32  # 128 bits
DAMAGED_PREFIX = "manifest.damaged-"  # names manifests whose files were lost later


def stage_key(stage: Stage, inputs: Mapping[str, str], parameters: Mapping[str, Any]) -> str:
    """The content key of a stage run.

    Args:
        inputs: digests of what the stage reads, by name.
        parameters: what `stage_parameters` returned.
    """
    content = {"stage": stage, "version": STAGE_VERSIONS[stage], "inputs": dict(inputs), "parameters": dict(parameters)}
    return canonical_digest(content)[:KEY_CHARACTERS]


def stage_folder(stage: Stage, key: str) -> str:
    """Store key of the folder with everything of one stage key."""
    return f"stages/{stage}/{key}"


def manifest_key(stage: Stage, key: str) -> str:
    """Where the manifest of a finished stage lies in the store."""
    return f"{stage_folder(stage, key)}/manifest.json"


def stage_lease(folder: str) -> str:
    """The lease under which the stage in a `stage_folder` is computed; `JobStore.acquire_keys` takes it."""
    _, stage, key = folder.split("/")
    return f"stage:{stage}:{key}"


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
            return {"draft": draft, "train": train, "integrations": spec.integrations}
        case Stage.EVALUATE:
            evaluate = spec.evaluate.model_dump(mode="json", exclude={"concurrency"})
            return {"evaluate": evaluate, "sampling": sampling}
        case Stage.PUBLISH:
            return {"algorithm": spec.draft.algorithm}


def rowset_key(stage: Stage, verifier: str, layer_ids: Sequence[int], spec: JobSpec) -> str | None:
    """Key of the stage runs that make equal rows of equal conversations, whatever else their datasets hold.

    Such runs have different stage keys (another limit, another split, more rows in the file), yet need not make each
    other's rows again. None: the stage makes no rows one by one.

    Args:
        verifier: the verifier's fingerprint.
        layer_ids: layers whose states are captured.
    """
    data = spec.data.model_dump(mode="json", include={"generate", "max_seq_len", "on_truncated", "sampling"})
    content: dict[str, Any] = {
        "stage": stage,
        "version": STAGE_VERSIONS[stage],
        "verifier": verifier,
        "layers": list(layer_ids),
    }
    match stage:
        case Stage.GENERATE:
            return canonical_digest({**content, "data": data})[:KEY_CHARACTERS]
        case Stage.CAPTURE:
            return canonical_digest({**content, "data": data, "dtype": spec.capture.dtype})[:KEY_CHARACTERS]
        case _:
            return None
