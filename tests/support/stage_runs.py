"""Stages run in the test's own process: a verifier's folder, a job document, and a context for one stage."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from services.worker.data.rows import Row
from services.worker.stage_context import Reporter, StageContext
from services.worker.stage_main import hash_files
from shared.ids import new_id
from shared.presets import merge
from shared.schemas.job import now
from shared.schemas.manifest import canonical_digest
from shared.schemas.registry import ONLY_SOURCE, DatasetFile, DatasetRecord, files_digest
from shared.schemas.spec import JobSpec

LAYERS, HIDDEN, VOCAB = 4, 16, 512
CONTROL_TOKENS = {480: "<|im_end|>", 481: "<|im_user|>", 482: "<think>", 483: "</think>"}
DOCUMENT: dict[str, Any] = {
    "verifier": {"model": ""},
    "data": {
        "dataset": "ds_00000000000000000000",
        "sampling": {"temperature": 0.0, "top_p": 1.0, "max_tokens": 64},
        "max_seq_len": 128,
        "val_ratio": 0.2,
        "concurrency": 4,
    },
    "capture": {"mode": "inline"},
    "draft": {"vocab_size": 128, "num_attention_heads": 2, "head_dim": 8},
    "train": {"gpus": 0},
    "evaluate": {"gpus": 0},
}


def write_verifier(folder: Path) -> Path:
    """Write the files of a Kimi-K2.5-shaped verifier that the worker reads; of its weights, what training needs."""
    folder.mkdir(parents=True, exist_ok=True)
    text = {
        "model_type": "kimi_k2",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 50000.0,
    }
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text}
    shapes = {"model.embed_tokens": (VOCAB, HIDDEN), "lm_head": (VOCAB, HIDDEN), "model.norm": (HIDDEN,)}
    weights = {f"language_model.{name}.weight": np.ones(shape, dtype=np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    added = {str(id_): {"content": text, "special": True} for id_, text in CONTROL_TOKENS.items()}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    return folder


def job_spec(verifier: Path, /, **changes: Any) -> JobSpec:
    """A small complete document; `changes` are merged into it."""
    base = merge(DOCUMENT, {"verifier": {"model": str(verifier)}})
    return JobSpec.model_validate(merge(base, changes))


def prompts(count: int) -> list[dict[str, Any]]:
    """Rows of different prompts, `prompt-0` and so on."""
    return [{"prompt": f"please answer prompt-{number}"} for number in range(count)]


def write_rows(path: Path, rows: list[Any]) -> Path:
    """Write rows as JSON lines; text is taken as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_dataset(folder: Path, *files: Path, weights: tuple[float | None, ...] = (), **fields: Any) -> Path:
    """Make a dataset's folder, as the gateway does, of JSONL or Parquet files; several are named as they are."""
    (folder / "files").mkdir(parents=True)
    entries = []
    for number, file in enumerate(files):
        content = file.read_bytes()
        shape = {"format": "parquet"} if content.startswith(b"PAR1") else {}
        shape |= {"compression": "gzip"} if content.startswith(b"\x1f\x8b") else {}
        path = f"files/{number}.{shape.get('format', 'jsonl')}"
        (folder / path).write_bytes(content)
        entry = DatasetFile(
            path=path,
            name=file.stem if len(files) > 1 else ONLY_SOURCE,
            rows=max(1, content.count(b"\n")),
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            weight=weights[number] if weights else None,
            **shape,
        )
        entries.append(entry)
    totals = {"rows": sum(entry.rows for entry in entries), "bytes": sum(entry.bytes for entry in entries)}
    values = {"id": folder.name, "name": "x", "sha256": files_digest(entries), "created_at": now(), **totals, **fields}
    record = DatasetRecord(files=entries, **values)
    (folder / "dataset.json").write_text(record.model_dump_json(), encoding="utf-8")
    return folder


class StageRunner:
    """Runs stages one after the other in folders below `root`; each sees what the earlier ones left.

    Args:
        dataset: a dataset's folder, or one file to make such a folder of.

    Attributes:
        events: what the last stage reported.
    """

    def __init__(self, root: Path, spec: JobSpec, dataset: Path, endpoint: str | None = None) -> None:
        self.root, self.spec, self.endpoint = root, spec, endpoint
        self.exchange = root / "exchange"
        self.exchange.mkdir(parents=True, exist_ok=True)
        if dataset.is_file():
            dataset = write_dataset(root / new_id("ds"), dataset)
        self.inputs: dict[str, Path] = {"dataset": dataset}
        self.digests: dict[str, str] = {}
        self.job_id = new_id("job")
        self.events: list[dict[str, Any]] = []

    def context(self, stage: str, previous: tuple[Path, ...] = (), siblings: tuple[Path, ...] = ()) -> StageContext:
        """A context for a new attempt at a stage."""
        token = new_id("run")
        folder = self.root / stage / token
        for part in ("out", "work"):
            (folder / part).mkdir(parents=True)
        return StageContext(
            job_id=self.job_id,
            stage=stage,
            token=token,
            spec=self.spec,
            inputs=self.inputs,
            out=folder / "out",
            work=folder / "work",
            previous=previous,
            siblings=siblings,
            exchange=self.exchange,
            endpoint=self.endpoint,
            served_model="tiny-verifier",
            gpus=(),
            gpu_verifier=False,
            report=Reporter(io.StringIO()),
            input_digests=dict(self.digests),
        )

    def run(self, module: Any, previous: tuple[Path, ...] = (), siblings: tuple[Path, ...] = ()) -> dict[str, Any]:
        """Run a stage's module to its end and make its `out` an input of the later ones."""
        stage = module.__name__.rsplit(".", 1)[-1]
        ctx = self.context(stage, previous, siblings)
        self.last = ctx
        try:
            summary: dict[str, Any] = module.run(ctx)
        finally:
            self.events = [json.loads(line) for line in ctx.report.stream.getvalue().splitlines()]
        self.inputs[stage] = ctx.out
        self.digests[stage] = canonical_digest([entry.model_dump() for entry in hash_files(ctx.out)])
        return summary


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def prompt_of(row: Row) -> list[int]:
    """The ids of a row that come before its answer."""
    return row.input_ids[: row.loss_mask.index(1)]


def answer_of(row: Row) -> list[int]:
    """The ids that were written, the last one included."""
    return [*row.input_ids[row.loss_mask.index(1) :], row.last_id]
