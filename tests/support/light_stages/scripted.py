"""The stages without models, for tests of the control plane.

A job's `metadata` says, by stage, what happens beside leaving the files that later stages read: see `follow`.
Metadata is in no stage key, so equal jobs stay equal.
"""

import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from services.worker.stage_context import StageContext
from services.worker.supervision import GPUS_VARIABLE, RUN_TOKEN_VARIABLE, STORE_VARIABLE, is_alive
from shared.errors import InternalError, UserError
from shared.ids import new_id
from shared.schemas.fleet import VerifierState, VerifierStatus
from shared.schemas.job import now

LOADING = VerifierStatus.LOADING
CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
# Starts CHILD in a session of its own, and ends: nobody but the kernel knows whose child it was.
DAEMON = f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {CHILD!r}], start_new_session=True)"
CUDA_HOLDER = Path(__file__).resolve().parents[1] / "cuda_holder.py"
EVALUATION = {
    "mode": "vllm",
    "num_speculative_tokens": 3,
    "temperature": 0.0,
    "suites": {"heldout": {"trained": {"acceptance_length": 2.5, "per_position": [0.8, 0.5, 0.2], "mode": "vllm"}}},
    "gate": {"result": "none", "failures": [], "mode": "vllm"},
}
META = {"num_train": 1, "num_val": 0, "supervised_train_tokens": 80, "layer_ids": [1, 2, 3, 4], "dtype": "float32"}
UNITS = {"prepare": "rows", "generate": "turns", "evaluate": "prompts"}
VOCABULARY = {"draft_vocab_size": 128, "target_vocab_size": 512, "coverage_val": 1.0}
FILES: dict[str, dict[str, str]] = {
    "prepare": {"conversations.jsonl": "{}\n"},
    "generate": {"rows_0-1/rows.jsonl": "{}\n"},
    "vocab": {"report.json": json.dumps(VOCABULARY)},
    "train": {
        "draft/config.json": "{}",
        "draft/model.safetensors": "weights",
        "train_config.json": json.dumps({"steps": 3}),
    },
    "evaluate": {"report.json": json.dumps(EVALUATION)},
}


def run(ctx: StageContext) -> dict[str, Any]:
    """Do what the job's metadata says, then leave the stage's files."""
    ctx.report.progress(0, 2, "steps")
    follow(ctx, ctx.spec.metadata.get(ctx.stage, ""))
    summary = leave(ctx)
    ctx.report.progress(2, 2, "steps")
    return summary


def leave(ctx: StageContext) -> dict[str, Any]:
    """Leave the stage's files; returns its summary, whose books balance."""
    count = items(ctx)
    capture = {"dataset/meta.json": json.dumps({**META, "num_train": count})}
    for name, content in (FILES | {"capture": capture})[ctx.stage].items():
        path = ctx.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return {"stage": ctx.stage, "accounting": {"unit": UNITS.get(ctx.stage, "rows"), "taken": count, "kept": count}}


def items(ctx: StageContext) -> int:
    """How many items the stage before left, be it a real one or another of these; 1 where there is none."""
    if ctx.stage == "capture":
        return sum(len(path.read_text().splitlines()) for path in ctx.inputs["generate"].glob("rows_*/rows.jsonl"))
    if "capture" in ctx.inputs and ctx.stage != "evaluate":
        meta = json.loads((ctx.inputs["capture"] / "dataset" / "meta.json").read_text())
        return int(meta["num_train"] + meta["num_val"])
    return 1


def follow(ctx: StageContext, words: str) -> None:
    """Do one thing: `hold FILE` (until it exists), `family FILE` (the same, with stubborn children in sessions of their
    own, one of them an orphan), `cuda FILE` (the same, with one that has memory on the run's first GPU), `alone FILE`
    (fail if a process of another run uses this one's GPUs, else hold),
    `serve FILE` (say that a verifier loads, then hold), `leave NAME TEXT` (a file), `refuse` (a user's error), `full`
    (no space left)."""
    verb, _, argument = words.partition(" ")
    match verb:
        case "hold":
            hold(ctx, Path(argument))
        case "family":
            subprocess.Popen([sys.executable, "-S", "-c", CHILD], start_new_session=True)
            subprocess.run([sys.executable, "-S", "-c", DAEMON], check=True)
            hold(ctx, Path(argument))
        case "cuda":
            ready = Path(f"{argument}.cuda.{ctx.token}")
            subprocess.Popen([sys.executable, str(CUDA_HOLDER), str(ready)], start_new_session=True)
            while not ready.exists():
                time.sleep(0.05)
            hold(ctx, Path(argument))
        case "alone":
            require_alone(ctx)
            hold(ctx, Path(argument))
        case "serve":
            ctx.report.verifier(
                VerifierState(id=new_id("verifier"), kind="managed", status=LOADING, draft="trained", checked_at=now())
            )
            hold(ctx, Path(argument))
        case "leave":
            name, _, text = argument.partition(" ")
            (ctx.out / name).parent.mkdir(parents=True, exist_ok=True)
            (ctx.out / name).write_text(text)
        case "refuse":
            (ctx.out / "half-made").write_text("x")
            raise UserError("this cannot work", where="line 3", hint="give another")
        case "full":
            raise OSError(errno.ENOSPC, "No space left on device")


def require_alone(ctx: StageContext) -> None:
    """Fail unless this run has GPUs, and no process of another run is left on them."""
    gpus = set(os.environ[GPUS_VARIABLE].split(","))
    others = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            theirs = set(environment.get(GPUS_VARIABLE, "").split(","))
            if environment.get(STORE_VARIABLE) != os.environ[STORE_VARIABLE]:
                continue  # of another site, whose faked GPUs are called the same
            if gpus & theirs and ctx.token not in environment[RUN_TOKEN_VARIABLE] and is_alive(process):
                others.append(process.pid)
    if others or gpus == {""}:
        raise InternalError(f"the GPUs {gpus} are shared with the processes {others}")


def hold(ctx: StageContext, file: Path) -> None:
    """Say that the stage is here (`FILE.reached.TOKEN`), leave half a result, and wait for the file."""
    (ctx.out / "half-made").write_text("x")
    file.with_name(f"{file.name}.reached.{ctx.token}").touch()
    while not file.exists():
        ctx.report.progress(1, 2, "steps")
        time.sleep(0.05)
    (ctx.out / "half-made").unlink()
