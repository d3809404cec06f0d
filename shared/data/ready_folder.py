"""A folder that a user brings: ready-made rows in speculators' own layout, or the files of a vocabulary.

Rows are a saved `datasets` folder (`data-*.arrow`, `state.json`, `dataset_info.json`; columns `input_ids`, `loss_mask`,
`seq_len`), their hidden states (`hidden_states/hs_I.safetensors` or beside, I counting rows from 0), perhaps
`token_freq.pt`, and Eyrie's own `rows.jsonl` and `meta.json`. Here are names and documents; `arrow` reads what the
Arrow files hold.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from shared.data.vocabulary_names import is_vocabulary_name
from shared.errors import UserError

STATES_NAME = re.compile(r"(hidden_states/)?hs_(0|[1-9][0-9]{0,8})\.safetensors")
ARROW_NAME = re.compile(r"[A-Za-z0-9][\w.-]*\.arrow")
STATE, INFO, META, ROWS, TOKEN_FREQ = "state.json", "dataset_info.json", "meta.json", "rows.jsonl", "token_freq.pt"
DOCUMENTS = (STATE, INFO, META)
STATES_FOLDER = "hidden_states"
MIB = 1 << 20
MAX_DOCUMENT_BYTES = 16 * MIB
MAX_TENSOR_FILE_BYTES = 64 * MIB
WANTED = (
    "a folder holds data-*.arrow, state.json, dataset_info.json, hidden_states/hs_I.safetensors, and perhaps "
    "token_freq.pt, rows.jsonl and meta.json; or t2d and d2t as .npy or .pt"
)

Kind = Literal["rows", "vocabulary"]
Format = Literal["arrow", "json", "jsonl", "safetensors", "npy", "pt"]


def file_format(name: str) -> Format | None:
    """What a file of such a folder holds by its name; None where no such file belongs there."""
    if name in DOCUMENTS:
        return "json"
    if name == ROWS:
        return "jsonl"
    if STATES_NAME.fullmatch(name):
        return "safetensors"
    if ARROW_NAME.fullmatch(name):
        return "arrow"
    if name == TOKEN_FREQ or is_vocabulary_name(name):
        return "npy" if name.endswith(".npy") else "pt"
    return None


def size_limit(kind: Format) -> int | None:
    """The most bytes that a file of a format may have; None: no more than the whole upload."""
    return {"json": MAX_DOCUMENT_BYTES, "npy": MAX_TENSOR_FILE_BYTES, "pt": MAX_TENSOR_FILE_BYTES}.get(kind)


def states_names(names: Iterable[str]) -> dict[int, str]:
    """Files of hidden states by the row that they belong to.

    Raises:
        UserError: a row has two.
    """
    found: dict[int, str] = {}
    for name in names:
        match = STATES_NAME.fullmatch(name)
        if match and found.setdefault(row := int(match[2]), name) != name:
            raise UserError(f"row {row} has two files of states: {found[row]} and {name}", where=name)
    return found


def arrow_names(folder: Path, names: Iterable[str]) -> list[str]:
    """The folder's Arrow files in the order in which `state.json` names them.

    Raises:
        UserError: `state.json` or `dataset_info.json` is absent, no JSON, or names other files than there are.
    """
    present = {name for name in names if ARROW_NAME.fullmatch(name)}
    for document in (STATE, INFO):
        if document not in set(names):
            raise UserError(f"the folder has no {document}", hint="upload all that Dataset.save_to_disk wrote")
    read_document(folder / INFO)
    state = read_document(folder / STATE)
    try:
        listed = [str(file["filename"]) for file in state["_data_files"]]
    except (KeyError, TypeError):
        raise UserError("does not name the data files", where=STATE) from None
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise UserError(
            "selects rows by an index of its own", where=STATE, hint="save the dataset after dataset.flatten_indices()"
        )
    if sorted(listed) != sorted(present):
        raise UserError(
            f"names the data files {listed[:5]}, the folder has {sorted(present)[:5]}",
            where=STATE,
            hint="upload the folder whole",
        )
    return listed


def read_document(path: Path) -> dict[str, Any]:
    """A JSON object of the folder.

    Raises:
        UserError: it is something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"is not JSON: {str(error) or 'nested too deeply'}"[:300], where=path.name) from None
    if not isinstance(document, dict):
        raise UserError("is not a JSON object", where=path.name)
    return document
