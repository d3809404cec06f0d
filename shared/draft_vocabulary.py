"""Checks of the draft's vocabulary before a job is accepted: its size, and the files where the job names some.

What can be seen here is refused here, since the vocab stage comes after the verifier's hours. `.pt` files are opened by
the stage alone: it takes torch to read them.
"""

from pathlib import Path

from shared.artifact_store import LocalArtifactStore
from shared.data.control_tokens import added_tokens, emitted_token_ids
from shared.data.vocabulary_files import check_vocabulary, read_npy
from shared.data.vocabulary_names import vocabulary_names
from shared.dataset_kinds import read_dataset
from shared.errors import UserError
from shared.schemas.spec import JobSpec

VOCABULARY = "/draft/vocabulary"
SIZE = "/draft/vocab_size"


def settle_vocabulary(spec: JobSpec, store: LocalArtifactStore) -> JobSpec:
    """The document with `draft.vocab_size` as the given vocabulary has it; unchanged where the job names none.

    Raises:
        UserError: there is no such vocabulary, or its size is not the one that the document asks for.
    """
    if spec.draft.vocabulary is None:
        return spec
    files = _files(spec.draft.vocabulary, store)
    asked = spec.draft.vocab_size if "vocab_size" in spec.draft.model_fields_set else None
    path = files[_names(files)["d2t"]]
    if path.suffix != ".npy":
        if asked is None:
            raise UserError(
                f"the size of a vocabulary in {path.name} is not known before its stage has read it",
                where=SIZE,
                hint="give it here: d2t has so many entries; or upload t2d.npy and d2t.npy",
            )
        return spec
    size = _entries(path)
    if asked is not None and asked != size:
        raise UserError(
            f"the vocabulary {spec.draft.vocabulary} has {size} tokens, not {asked}",
            where=SIZE,
            hint=f"give {size}, or leave it out",
        )
    draft = spec.draft.model_copy(update={"vocab_size": size})
    return spec.model_copy(update={"draft": draft})


def check_draft_vocabulary(spec: JobSpec, store: LocalArtifactStore, verifier: Path, target_size: int) -> None:
    """Check what the verifier's folder decides: room for its control tokens, and a given vocabulary's content.

    Args:
        verifier: the verifier's folder.
        target_size: V, its vocabulary.

    Raises:
        UserError: `where` is a JSON pointer into the job document.
    """
    required = sorted(id_ for id_ in emitted_token_ids(verifier) if id_ < target_size)
    if spec.draft.vocabulary is not None:
        texts = added_tokens(verifier)
        _check_files(_files(spec.draft.vocabulary, store), target_size, {id_: texts.get(id_, "") for id_ in required})
    if spec.draft.vocab_size < len(required):
        raise UserError(
            f"a draft vocabulary of {spec.draft.vocab_size} cannot hold the verifier's {len(required)} control tokens",
            where=SIZE,
            hint=f"give at least {len(required)}",
        )


def _check_files(files: dict[str, Path], target_size: int, required: dict[int, str]) -> None:
    names = _names(files)
    if {files[name].suffix for name in names.values()} != {".npy"}:
        return
    try:
        t2d, d2t = (read_npy(files[names[array]]) for array in ("t2d", "d2t"))
        check_vocabulary(t2d, d2t, names, target_size, required)
    except UserError as error:
        raise UserError(f"{error.where} {error.message}", where=VOCABULARY, hint=error.hint) from None


def _files(dataset_id: str, store: LocalArtifactStore) -> dict[str, Path]:
    """The vocabulary's files by name."""
    record = read_dataset(store, dataset_id)
    if record is None:
        raise UserError(
            f"there is no dataset {dataset_id!r}", where=VOCABULARY, hint="upload one with POST /v1/datasets"
        )
    if record.kind != "vocabulary":
        raise UserError(
            f"{dataset_id} is a dataset of {record.kind}, not a vocabulary",
            where=VOCABULARY,
            hint="upload a folder with t2d.npy and d2t.npy",
        )
    return {file.name: store.path(f"datasets/{dataset_id}/{file.path}") for file in record.files}


def _names(files: dict[str, Path]) -> dict[str, str]:
    """Which file holds which array.

    Raises:
        UserError
    """
    try:
        return vocabulary_names(files)
    except UserError as error:
        raise UserError(error.message, where=VOCABULARY, hint=error.hint) from None


def _entries(path: Path) -> int:
    """How many entries a `d2t` has.

    Raises:
        UserError: it is not a usable file.
    """
    try:
        return int(read_npy(path).size)
    except UserError as error:
        raise UserError(f"{error.where} {error.message}", where=VOCABULARY, hint=error.hint) from None
