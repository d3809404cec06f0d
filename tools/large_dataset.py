"""Uploads and prepares datasets of a given size in real processes, and says what memory those took.

The gateway is one process that takes every file over REST; each prepare stage is the child process that a worker would
start. Chats go as JSONL, gzip and Parquet, and must give the same conversations; token ids go as JSONL.
"""

import gzip
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from services.worker.stage_run import StageResult, StageRun
from shared.data.dataset_record import read_record
from shared.ids import new_id
from shared.presets import merge, resolve
from shared.schemas.job import Stage
from tests.support.gateway_process import GatewayProcess

ROOT = Path(__file__).resolve().parent.parent
VERIFIER = ROOT / "assets" / "tiny-verifier"
VOCABULARY = 512
TURNS_A_CHAT = 4
PARQUET_ROWS = 20_000
UPLOAD_TIMEOUT_S = 600.0
KIB = 1024
LOOK_EVERY_S = 0.02

Row = dict[str, Any]


@dataclass
class Measured:
    """One size's run.

    Attributes:
        stages: MiB that each prepare stage took at most, by what it read.
        gateway: MiB that the gateway had taken at most when all was uploaded.
        seconds: of each step.
        problems: what was not as it must be.
    """

    rows: int
    stages: dict[str, float] = field(default_factory=dict)
    gateway: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def run_size(rows: int, folder: Path, gateway: GatewayProcess, say: Callable[[str], None]) -> Measured:
    """Make files of so many rows, upload and prepare them."""
    folder.mkdir(parents=True)
    measured = Measured(rows)
    say(f"{rows} rows: writing files")
    files = write_files(folder, rows)
    conversations: dict[str, str] = {}
    with httpx.Client(base_url=gateway.url, timeout=UPLOAD_TIMEOUT_S) as http:
        for name, path in files.items():
            started = time.monotonic()
            dataset = upload(http, path)
            measured.seconds[f"upload {name}"] = round(time.monotonic() - started, 1)
            if dataset["rows"] != rows:
                measured.problems.append(f"upload {name}: {dataset['rows']} rows instead of {rows}")
            result, peak = prepare(folder / name, gateway.store / "datasets" / dataset["id"], name != "token ids")
            measured.stages[name] = peak
            measured.seconds[f"prepare {name}"] = round(result.seconds, 1)
            measured.problems += problems_of(name, result, rows)
            hashes = {file.path: file.sha256 for file in result.files}
            conversations[name] = hashes.get("conversations.jsonl", "")
            say(f"{rows} rows, {name}: prepared in {result.seconds:.1f} s, {peak:.0f} MiB at most")
    measured.gateway = high_water(gateway.process.pid)
    say(f"{rows} rows: the gateway took {measured.gateway:.0f} MiB at most")
    if len({conversations[name] for name in ("chats", "chats in gzip", "chats in Parquet")}) != 1:
        measured.problems.append("the same chats as JSONL, gzip and Parquet gave other conversations")
    return measured


def write_files(folder: Path, rows: int) -> dict[str, Path]:
    """The same chats as JSONL, gzip and Parquet, and rows of token ids; by name."""
    paths = {
        "chats": folder / "chats.jsonl",
        "chats in gzip": folder / "chats.jsonl.gz",
        "chats in Parquet": folder / "chats.parquet",
        "token ids": folder / "tokens.jsonl",
    }
    with paths["chats"].open("wb") as plain, gzip.open(paths["chats in gzip"], "wb", compresslevel=1) as packed:
        for chat in chats(rows):
            line = _line(chat)
            plain.write(line)
            packed.write(line)
    _write_parquet(paths["chats in Parquet"], chats(rows))
    with paths["token ids"].open("wb") as file:
        for row in token_rows(rows):
            file.write(_line(row))
    return paths


def chats(rows: int) -> Iterator[Row]:
    """Different chats of two questions and two answers."""
    choose = random.Random(rows)
    words = [f"word{number}" for number in range(2000)]
    for number in range(rows):
        texts = [" ".join(choose.choices(words, k=20)) for _ in range(TURNS_A_CHAT)]
        texts[0] = f"question {number}: {texts[0]}"
        roles = ("user", "assistant") * (TURNS_A_CHAT // 2)
        yield {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]}


def token_rows(rows: int) -> Iterator[Row]:
    """Different rows of token ids, two to a conversation."""
    choose = random.Random(rows)
    for number in range(rows):
        ids = choose.choices(range(VOCABULARY), k=60)
        yield {"input_ids": ids, "loss_mask": [0] * 20 + [1] * 40, "conversation_id": number // 2}


def upload(http: httpx.Client, path: Path) -> Row:
    """Upload a file as a stream; return the dataset."""
    with path.open("rb") as file:
        response = http.post("/v1/datasets", params={"name": path.name}, content=_pieces(file))
    response.raise_for_status()
    dataset: Row = response.json()
    return dataset


def prepare(folder: Path, dataset: Path, generate: bool) -> tuple[StageResult, float]:
    """Run the prepare stage as the worker does; return its result, and the MiB that it took at most."""
    for part in ("out", "work"):
        (folder / part).mkdir(parents=True)
    document = {"preset": "tiny", "verifier": {"model": str(VERIFIER)}}
    spec = resolve(merge(document, {"data": {"dataset": dataset.name, "generate": generate}}))
    run = StageRun(
        job_id=new_id("job"),
        stage=Stage.PREPARE,
        token=new_id("run"),
        spec=spec,
        inputs={"dataset": dataset},
        input_digests={"dataset": read_record(dataset).sha256},
        out=folder / "out",
        work=folder / "work",
        previous=[],
        exchange=folder,
    )
    (folder / "run.json").write_text(run.model_dump_json(), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "services.worker.stage_main",
        str(folder / "run.json"),
        str(folder / "result.json"),
    ]
    process, peak = subprocess.Popen(command, cwd=ROOT), 0.0
    while process.poll() is None:  # wait4's ru_maxrss would be this process's own, which the child begins with
        peak = high_water(process.pid) or peak
        time.sleep(LOOK_EVERY_S)
    return StageResult.model_validate_json((folder / "result.json").read_bytes()), peak


def problems_of(name: str, result: StageResult, rows: int) -> list[str]:
    """What is wrong with a stage's result."""
    if result.error is not None:
        return [f"prepare {name}: {result.error.message}"]
    books = result.summary["accounting"]
    expected = {"unit": "rows", "taken": rows, "kept": rows, "rejected": {}}
    return [] if books == expected else [f"prepare {name}: the books are {books} and not {expected}"]


def high_water(pid: int) -> float:
    """MiB that a process has held at most; 0 where it has ended."""
    _, _, figure = Path(f"/proc/{pid}/status").read_text(encoding="ascii").partition("VmHWM:")
    return int(figure.split()[0]) / KIB if figure else 0.0


def _write_parquet(path: Path, rows: Iterator[Row]) -> None:
    turn = pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.string())])
    with pq.ParquetWriter(path, pa.schema([("messages", pa.list_(turn))])) as writer:
        while part := list(itertools.islice(rows, PARQUET_ROWS)):
            writer.write_table(pa.Table.from_pylist(part, schema=writer.schema), row_group_size=PARQUET_ROWS)


def _line(row: Row) -> bytes:
    return json.dumps(row).encode() + b"\n"


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(1 << 18):
        yield piece
