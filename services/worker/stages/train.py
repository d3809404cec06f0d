"""The train stage: rows, hidden states and vocabulary in, a checked draft folder out.

Leaves in `out`: `draft/` (best by validation: longest estimated acceptance, then lowest loss), `last/` (the last
epoch's, where it is another), `untrained/` (the same draft before its first step), `train_config.json`,
`metrics.jsonl`, and in `logs/` what the job's loggers wrote. The trainer is a process of its own (several ranks under
torchrun where several GPUs are leased); this stage prepares its configuration, relays what it reports, and judges the
result by the steps it reached.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from services.worker.draft_folder import ExpectedDraft, check_draft_folder
from services.worker.stage_context import StageContext
from services.worker.training.launch import run_trainer
from services.worker.training.log_files import copy_logs
from services.worker.training.prepare_run import prepare_run
from services.worker.training.run_config import (
    EXPORT_NAME,
    LOGS_NAME,
    METRICS_NAME,
    RESULT_NAME,
    RunConfig,
    RunResult,
)
from shared.errors import InternalError

PUBLISHED = {"best": "draft", "last": "last", "untrained": "untrained"}


def run(ctx: StageContext) -> dict[str, Any]:
    """Train, check, and put the draft where it is published.

    Raises:
        UserError: the job's shape, data or attention cannot work here.
        DivergedError: a loss or weight is not finite.
        EyrieError: with reason `oom_gpu` or `oom_host` where memory ran out.
        InternalError: the trainer ended before its last step.
    """
    config = prepare_run(ctx)
    run_trainer(config, ctx.gpus, ctx.report)
    result = _result(config)
    _publish(config, ctx.out)
    shutil.copyfile(config.run / METRICS_NAME, ctx.out / METRICS_NAME)
    copy_logs(config.run / LOGS_NAME, ctx.out / LOGS_NAME)
    record = train_record(config, result)
    (ctx.out / "train_config.json").write_text(json.dumps(record, indent=2) + "\n")
    return summary(result)


def summary(result: RunResult) -> dict[str, Any]:
    """The few numbers that stand in the job record."""
    figures = {
        "steps": result.steps,
        "resumed_from": result.resumed_from,
        "best_epoch": result.best.epoch,
        "last_epoch": result.last.epoch,
        "loss": result.best.metrics["loss"],
        "estimated_acceptance_length": result.best.metrics["estimated_acceptance_length"],
        "parameters": result.parameters["saved"],
        "tokens": result.tokens,
        "samples": result.samples,
        "accounting": result.rows.model_dump(),
        "train_seconds": round(result.seconds, 3),
    }
    return figures if result.peak_gpu_bytes is None else {**figures, "peak_gpu_bytes": result.peak_gpu_bytes}


def train_record(config: RunConfig, result: RunResult) -> dict[str, Any]:
    """`train_config.json`: hyperparameters as resolved and what came of them; no path of this machine."""
    return {
        "verifier": config.verifier_name,
        "draft": config.draft.model_dump(),
        "shape": config.shape,
        "layer_ids": config.layer_ids,
        "train": config.train.model_dump(),
        "device": config.device,
        "world_size": result.world_size,
        "attention": {"used": config.attention, "why": config.attention_why},
        "dtype": {"compute": config.dtype, "weights": "float32", "export": config.export_dtype},
        "rows": {"train": config.num_train, "val": config.num_val},
        "accounting": result.rows.model_dump(),
        "vocabulary_coverage_val": config.coverage,
        "steps": result.steps,
        "resumed_from": result.resumed_from,
        "tokens": result.tokens,
        "samples": result.samples,
        "parameters": result.parameters,
        "seconds": result.seconds,
        "peak_gpu_bytes": result.peak_gpu_bytes,
        "peak_host_bytes": result.peak_host_bytes,
        "best": result.best.model_dump(),
        "last": result.last.model_dump(),
        "published": "best by validation: longest estimated acceptance, then lowest loss",
        "versions": result.versions,
    }


def _result(config: RunConfig) -> RunResult:
    path = config.run / RESULT_NAME
    if not path.is_file():
        raise InternalError("the trainer ended without a result", hint="the stage's log says why")
    result = RunResult.model_validate_json(path.read_bytes())
    if result.steps < result.total_steps:
        raise InternalError(
            f"the trainer stopped at step {result.steps} of {result.total_steps}",
            hint="the stage's log says why",
        )
    return result


def _publish(config: RunConfig, out: Path) -> None:
    """Check every exported folder, then move it into place: what stands in `out` is whole."""
    verifier = json.loads((config.verifier / "config.json").read_text())
    expected = ExpectedDraft(
        shape=config.shape,
        draft_vocab_size=config.draft.vocab_size,
        layer_ids=config.layer_ids,
        norm_before_residual=config.draft.norm_before_residual,
        norm_before_fc=config.draft.norm_before_fc,
        norm_output=config.draft.norm_output,
        dtype=config.export_dtype,
    )
    exports = [config.run / EXPORT_NAME / name for name in PUBLISHED]
    for folder in exports:
        if folder.is_dir():
            check_draft_folder(folder, verifier, expected)
    for folder in exports:
        target = out / PUBLISHED[folder.name]
        shutil.rmtree(target, ignore_errors=True)
        if folder.is_dir():
            _move(folder, target)


def _move(folder: Path, target: Path) -> None:
    """Rename; across filesystems copy beside the target first, so that the name appears with everything in it."""
    try:
        folder.rename(target)
    except OSError:
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(folder, partial)
        partial.rename(target)
        shutil.rmtree(folder)
