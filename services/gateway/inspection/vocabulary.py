"""Inspection of a vocabulary: its sizes, and whether a draft of the verifier could have it.

In: a dataset of kind `vocabulary`. `.npy` files are read here; it takes torch to read `.pt` files, so those are left to
the vocab stage.
"""

from collections.abc import Mapping
from pathlib import Path

from services.gateway.inspection.documents import VocabularyView
from shared.data.control_tokens import added_tokens, emitted_token_ids
from shared.data.vocabulary_files import check_vocabulary, read_npy
from shared.data.vocabulary_names import vocabulary_names
from shared.errors import UserError
from shared.schemas.registry import DatasetRecord
from shared.verifier_config import read_verifier_config

UNREAD = "a .pt file is read by the vocab stage alone: sizes and contents are not known here"


def inspect_vocabulary(
    dataset: Path, record: DatasetRecord, verifier: Path | None
) -> tuple[VocabularyView, str | None]:
    """The vocabulary, and why no job with this verifier could use it.

    Args:
        verifier: the verifier's folder; None where it is not known here, then only the sizes are told.
    """
    files = {file.name: dataset / file.path for file in record.files}
    try:
        names = vocabulary_names(files)
        view = VocabularyView(files=names)
        if {files[name].suffix for name in names.values()} != {".npy"}:
            return view.model_copy(update={"note": UNREAD}), None
        return _read(files, names, verifier)
    except UserError as error:
        return VocabularyView(files={}), str(error)


def _read(
    files: Mapping[str, Path], names: Mapping[str, str], verifier: Path | None
) -> tuple[VocabularyView, str | None]:
    t2d, d2t = (read_npy(files[names[array]]) for array in ("t2d", "d2t"))
    view = VocabularyView(files=dict(names), target_size=int(t2d.size), draft_size=int(d2t.size))
    if verifier is None:
        return view, None
    size, texts = read_verifier_config(verifier).vocab_size, added_tokens(verifier)
    required = {id_: texts.get(id_, "") for id_ in emitted_token_ids(verifier)}
    try:
        check_vocabulary(t2d, d2t, names, size, required)
    except UserError as error:
        return view, str(error)
    return view, None
