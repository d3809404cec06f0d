"""Takes over what is whole of a finished output that was damaged later, as if an attempt had been broken off there.

In: the damaged output's manifest and folder, and the stage's work folder. Out: another work folder for `previous`, with
the rows whose files still have the checksums of that manifest. Only generate and capture, whose rows cost requests to
the verifier, have anything to take over; other stages are run anew.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from services.worker.data.rows import Row, RowFolder, read_jsonl, read_shards
from services.worker.stage_run import StageRun, StoredOutput
from shared.artifact_store import file_sha256, link_or_copy
from shared.schemas.job import Stage
from shared.schemas.manifest import Manifest

FOLDER = "salvaged"
INDEX = "dataset/rows.jsonl"


def salvage(run: StageRun) -> list[Path]:
    """Collect the whole rows of a run's damaged outputs; return the work folders that were made of them."""
    makers = {Stage.GENERATE: _generated, Stage.CAPTURE: _captured}
    made: list[Path] = []
    for number, output in enumerate(run.damaged if run.stage in makers else []):
        manifest = Manifest.model_validate_json(output.manifest.read_bytes())
        known = {entry.path: entry.sha256 for entry in manifest.files}
        folder = run.work / f"{FOLDER}-{number}"
        rows = RowFolder(folder / "rows")
        for row, states in makers[run.stage](run, output, known):
            if states is not None:
                link_or_copy(states, rows.states_path(row.id))
            rows.write(row)
        made.append(folder)
    return made


def _generated(run: StageRun, output: StoredOutput, known: Mapping[str, str]) -> Iterator[tuple[Row, Path | None]]:
    """Rows of whole shards. A row whose states are lost is kept: capture asks for them again, by its token ids."""
    for path in known:
        shard = (output.folder / path).parent
        if not path.endswith("/rows.jsonl") or not _is_whole(output.folder, shard / "rows.jsonl", known):
            continue
        for document in read_jsonl(shard / "rows.jsonl"):
            row = Row.model_validate(document)
            states = shard / f"{row.id}.safetensors"
            lost = not _is_whole(output.folder, states, known)
            yield (row.model_copy(update={"has_states": False}), None) if lost else (row, states)


def _captured(run: StageRun, output: StoredOutput, known: Mapping[str, str]) -> Iterator[tuple[Row, Path | None]]:
    """Rows whose states are whole."""
    index = output.folder / INDEX
    if not _is_whole(output.folder, index, known):
        return
    numbers = {entry["row_id"]: entry["index"] for entry in read_jsonl(index)}
    for row, _ in read_shards(run.inputs["generate"]):
        states = output.folder / f"dataset/hidden_states/hs_{numbers.get(row.id)}.safetensors"
        if _is_whole(output.folder, states, known):
            yield row, states


def _is_whole(folder: Path, file: Path, known: Mapping[str, str]) -> bool:
    return file.is_file() and file_sha256(file) == known.get(file.relative_to(folder).as_posix())
