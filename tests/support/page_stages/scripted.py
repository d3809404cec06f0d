"""Stages with something to look at, for tests of the page: they write logs, count, and train a draft that gets better.

A job's `metadata` says how: `steps` and `step_s` of the training, `quality` of the draft (what the loss falls to, and
what acceptance grows to), `<stage>` as in the light stages.
"""

import json
import math
import time
from typing import Any

from services.worker.stage_context import StageContext
from tests.support.light_stages.scripted import follow, leave

POSITIONS = 3
ROWS = 24
SPAN = 80  # most of what is learnt is learnt in so many steps


def run(ctx: StageContext) -> dict[str, Any]:
    """Do the stage's scripted work, then leave its files."""
    print(f"{ctx.stage} begins {ctx.spec.metadata.get('log', '')}", flush=True)
    follow(ctx, ctx.spec.metadata.get(ctx.stage, ""))
    match ctx.stage:
        case "train":
            train(ctx)
        case "generate":
            count(ctx, "turns")
        case "evaluate":
            count(ctx, "prompts")
    summary = leave(ctx)
    if ctx.stage == "evaluate":
        summary |= write_report(ctx)
    print(f"{ctx.stage} is done", flush=True)
    return summary


def count(ctx: StageContext, unit: str) -> None:
    """Count to the end, saying so."""
    for row in range(ROWS + 1):
        ctx.report.progress(row, ROWS, unit)
        print(f"{ctx.stage}: {row} of {ROWS} {unit}", flush=True)
        time.sleep(pace(ctx) / 4)


def train(ctx: StageContext) -> None:
    """Take steps whose loss falls; the held-out split is looked at every eighth step."""
    steps = int(ctx.spec.metadata.get("steps", "24"))
    ctx.report.event("training_started", step=0, total_steps=steps)
    for step in range(1, steps + 1):
        values = figures(ctx, step / min(steps, SPAN))
        ctx.report.metric(step, {**values, "lr": 1e-3 * (1 - step / (steps + 1)), "epoch": 0})
        if step % 8 == 0 or step == steps:
            held = {f"val_{name}": value * 0.97 for name, value in values.items()}
            ctx.report.metric(step, {**held, "epoch": 0})
            ctx.report.event("checkpoint", step=step, epoch=0)
        ctx.report.progress(step, steps, "steps", loss=values["loss"], tokens_per_s=8000.0)
        print(f"step {step}: loss {values['loss']:.4f}", flush=True)
        time.sleep(pace(ctx))
    ctx.report.warn("the loss stands still over the last steps")


def figures(ctx: StageContext, part: float) -> dict[str, float]:
    """Loss and accuracies after a part of the training."""
    gain = quality(ctx) * (1 - math.exp(-4 * part))
    accuracies = {f"full_acc_{i}": 0.05 + 0.85 * gain * 0.72**i for i in range(POSITIONS)}
    return {"loss": 6.2 - 4 * gain, **accuracies}


def write_report(ctx: StageContext) -> dict[str, Any]:
    """A report whose trained draft is as good as the job's metadata says."""
    suites = {
        suite.name: {
            "trained": measured(0.85 * quality(ctx) - 0.04 * number),
            "untrained": measured(0.08),
        }
        for number, suite in enumerate(ctx.spec.evaluate.suites)
    }
    report = {
        "mode": "vllm",
        "num_speculative_tokens": POSITIONS,
        "temperature": 0.0,
        "suites": suites,
        "gate": {
            "result": gate(ctx, suites[ctx.spec.evaluate.suites[0].name]["trained"]),
            "failures": [],
            "mode": "vllm",
        },
    }
    (ctx.out / "report.json").write_text(json.dumps(report))
    return report


def gate(ctx: StageContext, trained: dict[str, Any]) -> str:
    """What becomes of the gate. (The real one is in a module that takes seconds to load.)"""
    least = ctx.spec.evaluate.gate.min_acceptance_length
    if least is None:
        return "none"
    return "passed" if trained["acceptance_length"] >= least else "failed"


def measured(first: float) -> dict[str, Any]:
    """Figures of a draft whose first token is right so often."""
    positions = [first * 0.7**i for i in range(POSITIONS)]
    return {"acceptance_length": 1 + sum(positions), "per_position": positions, "mode": "vllm"}


def quality(ctx: StageContext) -> float:
    """How good the draft gets, from 0 to 1."""
    return float(ctx.spec.metadata.get("quality", "0.9"))


def pace(ctx: StageContext) -> float:
    """Seconds that a training step takes."""
    return float(ctx.spec.metadata.get("step_s", "0.02"))
