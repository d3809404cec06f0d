"""Stages for the chaos suite: they leave what later stages read, and write into the journal what they really did.

`train` takes `metadata.steps` steps of `metadata.step_s` seconds, keeps its step after each, and goes on
from the highest step that an earlier attempt kept.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from services.worker.stage_context import StageContext
from tests.support.chaos.journal import Journal
from tests.support.light_stages.scripted import leave

STEP_FILE = "step.json"


def run(ctx: StageContext) -> dict[str, Any]:
    """Do the stage's scripted work."""
    journal = Journal.from_environment()
    with journal.running(ctx.job_id, ctx.stage, ctx.token, ctx.gpus):
        steps = train(ctx, journal) if ctx.stage == "train" else 1
        summary = leave(ctx)
        ctx.report.progress(steps, steps, "steps")
    return summary


def train(ctx: StageContext, journal: Journal) -> int:
    """Take the steps that are left; return how many there are in all."""
    steps, step_s = int(ctx.spec.metadata.get("steps", "3")), float(ctx.spec.metadata.get("step_s", "0.02"))
    first = max((kept_step(folder) for folder in ctx.previous), default=0) + 1
    for step in range(first, steps + 1):
        time.sleep(step_s)
        keep_step(ctx.work, step)
        journal.write("step", job=ctx.job_id, token=ctx.token, step=step, first=step == first)
        ctx.report.progress(step, steps, "steps")
    return steps


def keep_step(work: Path, step: int) -> None:
    """Write a step down, whole."""
    temporary = work / f"{STEP_FILE}.tmp"
    temporary.write_text(json.dumps({"step": step}))
    os.replace(temporary, work / STEP_FILE)


def kept_step(work: Path) -> int:
    """The last step that was written down, or 0."""
    path = work / STEP_FILE
    return int(json.loads(path.read_text())["step"]) if path.is_file() else 0
