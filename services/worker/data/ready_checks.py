"""Looks at a folder of ready-made rows before anything is done with it: are these rows of the job's verifier?

Each row and each file of states is judged later, one by one. Here is what concerns all of them: the layers, the hidden
size, and the counts in `token_freq.pt`.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from shared.data.ready_folder import META, TOKEN_FREQ, read_document, states_names
from shared.data.ready_rows import count_masked
from shared.errors import UserError
from shared.schemas.registry import DatasetRecord
from shared.schemas.spec import JobSpec
from shared.verifier_config import capture_layer_ids, read_verifier_config

FILES = "files"
LEAVE_OUT = "leave the file out: tokens are counted anyway"


def check_ready_rows(folder: Path, record: DatasetRecord, spec: JobSpec) -> None:
    """Check a dataset's folder of kind `rows` against the job.

    Raises:
        UserError: its states are of other layers or another hidden size, or `token_freq.pt` counts other rows.
    """
    names = {file.name for file in record.files}
    config = read_verifier_config(Path(spec.verifier.model))
    layers = capture_layer_ids(spec.capture.layer_ids, config.num_hidden_layers)
    if META in names:
        _check_meta(read_document(folder / FILES / META), layers, config.hidden_size)
    _check_first_states(folder / FILES, states_names(names), len(layers), config.hidden_size)
    if TOKEN_FREQ in names:
        _check_counts(_read_counts(folder / FILES / TOKEN_FREQ), count_masked(folder, record))


def _check_meta(meta: dict[str, Any], layers: list[int], hidden_size: int) -> None:
    for name, found, wanted in (
        ("layer_ids", meta.get("layer_ids"), layers),
        ("hidden_size", meta.get("hidden_size"), hidden_size),
    ):
        if found is not None and found != wanted:
            raise UserError(
                f"the rows' states have {name} {found}, the job wants {wanted}",
                where=META,
                hint="give capture.layer_ids as they are there, without the last" if name == "layer_ids" else "",
            )


def _check_first_states(files: Path, states: dict[int, str], slots: int, hidden_size: int) -> None:
    """Look into the first file that can be read; others that differ from it are bad rows, not a bad folder."""
    for row in sorted(states):
        path = files / states[row]
        try:
            with safe_open(path, framework="np") as file:
                shape = file.get_slice("hidden_states").get_shape()
        except (SafetensorError, OSError):
            continue
        if len(shape) != 3 or shape[1:] != [slots, hidden_size]:
            raise UserError(
                f"hidden_states has shape {shape}, the job wants [S, {slots}, {hidden_size}]: "
                f"{slots - 1} auxiliary layers and the final one of the verifier's hidden size",
                where=states[row],
                hint="name the layers in capture.layer_ids, or the verifier that the states are of",
            )
        return


def _check_counts(given: dict[int, int], own: dict[int, int]) -> None:
    for id_ in sorted(given.keys() | own.keys()):
        if given.get(id_, 0) != own.get(id_, 0):
            raise UserError(
                f"says that token {id_} is learnt {given.get(id_, 0)} times; the rows have it {own.get(id_, 0)} times",
                where=TOKEN_FREQ,
                hint=LEAVE_OUT,
            )


def _read_counts(path: Path) -> dict[int, int]:
    """Have a process of its own read the file: this one stays free of torch, and of what a hostile file may do."""
    command = [sys.executable, "-m", "services.worker.data.token_freq", str(path)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"error": "cannot be read"}
    if "error" in answer:
        raise UserError(answer["error"], where=path.name, hint=LEAVE_OUT)
    return {int(id_): count for id_, count in answer["counts"].items()}
