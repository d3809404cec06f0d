"""Folders of ready-made rows in speculators' own layout, and archives of them, good and hostile."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors.numpy import save_file

from shared.artifact_store import file_sha256
from shared.data.arrow import count_rows
from shared.data.ready_folder import file_format
from shared.schemas.job import now
from shared.schemas.registry import DatasetFile, DatasetRecord, files_digest
from tests.support.stage_runs import HIDDEN, LAYERS


def make_rows(count: int, *, seed: int = 0, vocab: int = 400) -> list[tuple[list[int], list[int]]]:
    """Ids and masks: a prompt of a few tokens, an answer of a few more."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        prompt, answer = int(random.integers(2, 6)), int(random.integers(2, 9))
        ids = [int(id_) for id_ in random.integers(16, vocab, prompt + answer)]
        rows.append((ids, [0] * prompt + [1] * answer))
    return rows


def states_of(ids: list[int], layers: int = LAYERS, hidden: int = HIDDEN) -> np.ndarray:
    """States that depend on the ids and nothing else, [S, layers, hidden]."""
    layer = np.arange(1, layers + 1, dtype=np.float32)[None, :, None]
    unit = np.arange(1, hidden + 1, dtype=np.float32)[None, None, :]
    return np.sin(np.asarray(ids, dtype=np.float32)[:, None, None] * layer + unit)


def write_states(path: Path, ids: list[int], states: np.ndarray | None = None) -> None:
    """A file of states as vLLM's connector writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = states_of(ids) if states is None else states
    save_file({"hidden_states": made, "token_ids": np.asarray(ids, dtype=np.int64)}, path)


def write_folder(
    folder: Path,
    rows: list[tuple[list[int], list[int]]],
    *,
    states: Iterable[int] | None = None,
    shards: int = 1,
    token_freq: bool = True,
    beside: bool = False,
) -> Path:
    """What speculators' `prepare-data` and `generate-offline-data` leave behind.

    Args:
        states: rows that have states; absent: all.
        beside: put them beside the rows rather than into `hidden_states`.
    """
    columns = {
        "input_ids": [ids for ids, _ in rows],
        "loss_mask": [mask for _, mask in rows],
        "seq_len": [len(ids) for ids, _ in rows],
    }
    dataset = Dataset.from_dict(columns)
    dataset.set_format("torch", columns=["input_ids", "loss_mask", "seq_len"])
    dataset.save_to_disk(str(folder), num_shards=shards)
    for number in range(len(rows)) if states is None else states:
        name = f"hs_{number}.safetensors"
        write_states(folder / name if beside else folder / "hidden_states" / name, rows[number][0])
    if token_freq:
        counts: dict[int, int] = {}
        for ids, mask in rows:
            for id_ in (i for i, m in zip(ids, mask, strict=True) if m):
                counts[id_] = counts.get(id_, 0) + 1
        torch.save(counts, folder / "token_freq.pt")
    return folder


def content_of(folder: Path) -> dict[str, bytes]:
    """Files by their path in a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def archive(files: dict[str, bytes], *, mode: str = "w", top: str = "", **options: Any) -> bytes:
    """A tar archive of files."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode, **options) as made:
        for name, content in files.items():
            entry = tarfile.TarInfo(top + name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def with_entry(files: dict[str, bytes], change: Callable[[tarfile.TarInfo], None], content: bytes = b"") -> bytes:
    """An archive of files with one more entry, made as `change` says."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as made:
        entry = tarfile.TarInfo("extra")
        entry.size = len(content)
        change(entry)
        made.addfile(entry, io.BytesIO(content))
        for name, body in files.items():
            plain = tarfile.TarInfo(name)
            plain.size = len(body)
            made.addfile(plain, io.BytesIO(body))
    return target.getvalue()


def edited(files: dict[str, bytes], name: str, **fields: Any) -> dict[str, bytes]:
    """The same files with fields of a JSON document replaced."""
    return {**files, name: json.dumps({**json.loads(files[name]), **fields}).encode()}


def enter_folder(target: Path, folder: Path) -> Path:
    """Make a dataset of a folder, as the gateway does; a second one of the same name gets a number."""
    while target.exists():
        target = target.with_name(f"{target.name}x")
    shutil.copytree(folder, target / "files")
    names = sorted(content_of(folder))
    files = []
    for name in names:
        path = folder / name
        rows = count_rows(path) if name.endswith(".arrow") else 0
        kind = file_format(name)
        sha256, size = file_sha256(path), path.stat().st_size
        files.append(DatasetFile(path=f"files/{name}", name=name, format=kind, rows=rows, bytes=size, sha256=sha256))
    record = DatasetRecord(
        id=target.name,
        kind="rows",
        name="x",
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
        sha256=files_digest(files),
        files=files,
        created_at=now(),
    )
    (target / "dataset.json").write_text(record.model_dump_json())
    return target
