"""Reads a stage's inputs and settles everything the trainer needs, so that it can only fail at training."""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np

from services.worker.integrations import loggers_of, require_loggers
from services.worker.stage_context import StageContext
from services.worker.training.attention import choose_attention
from services.worker.training.row_index import INDEX_NAME
from services.worker.training.run_config import (
    CONFIG_NAME,
    DRAFT_CONFIG_NAME,
    EVENTS_NAME,
    RESULT_NAME,
    RunConfig,
)
from shared.artifact_store import file_sha256
from shared.draft_shape import DEFAULT_NORM_EPS, draft_shape
from shared.errors import InternalError, UserError
from shared.verifier_config import find_model_folder, public_model_name


def prepare_run(ctx: StageContext) -> RunConfig:
    """Build the run's configuration, and write it with the draft's decoder into the run folder.

    Raises:
        UserError: verifier, shape, vocabulary or attention cannot work.
        InternalError: an input lacks what the stage before must have left.
    """
    dataset = ctx.inputs["capture"] / "dataset"
    meta = _document(dataset / "meta.json")
    verifier = _verifier_folder(ctx)
    text = _document(verifier / "config.json")
    text = text.get("text_config", text)
    spec = ctx.spec
    _check_counted_on(ctx)
    draft = _draft_with_real_vocabulary(ctx)
    device: Literal["cpu", "cuda"] = "cuda" if ctx.gpus else "cpu"
    attention, why = choose_attention(spec.train.attention, device)
    _check_hidden_size(meta, text)
    config = RunConfig(
        dataset=dataset,
        data=_data_digest(dataset, verifier, ctx.inputs["vocab"]),
        verifier=verifier,
        verifier_name=public_model_name(spec.verifier.model),
        vocab=ctx.inputs["vocab"],
        shape=draft_shape(draft, text),
        layer_ids=meta["layer_ids"][:-1],
        num_train=meta["num_train"],
        num_val=meta["num_val"],
        coverage=_coverage(ctx),
        verifier_norm_eps=float(text.get("rms_norm_eps") or DEFAULT_NORM_EPS),
        device=device,
        attention=attention,
        attention_why=why,
        dtype=_compute_dtype(spec.train.dtype, device),
        train=spec.train,
        draft=draft,
        integrations=_loggers(ctx),
        run_name=ctx.job_id,
        run=ctx.work / "run",
        earlier=[folder / "run" for folder in ctx.previous],
    )
    _write(config)
    _warn_of_long_rows(ctx, dataset)
    return config


def _loggers(ctx: StageContext) -> list[str]:
    require_loggers(ctx.spec)
    loggers, missing = loggers_of(ctx.spec)
    for name in missing:
        ctx.report.warn(
            f"{name}, the default logger, is not installed on this worker: the curves are in metrics.jsonl only "
            f"(pip install {name} there, or `integrations: []` in the job, ends this warning)"
        )
    return loggers


def _data_digest(dataset: Path, verifier: Path, vocab: Path) -> str:
    """Names what is trained on: a resume point of other rows, another verifier or vocabulary must not be taken."""
    digest = hashlib.sha256()
    for path in (dataset / INDEX_NAME, verifier / "config.json", vocab / "t2d.npy"):
        digest.update(file_sha256(path).encode())
    return digest.hexdigest()


def _compute_dtype(asked: str, device: str) -> Any:
    if asked == "auto":
        return "bfloat16" if device == "cuda" else "float32"
    return asked


def _check_hidden_size(meta: dict[str, Any], text: dict[str, Any]) -> None:
    if meta["hidden_size"] != text["hidden_size"]:
        raise UserError(
            f"the rows' states have size {meta['hidden_size']}, the verifier's {text['hidden_size']}",
            where="/verifier/model",
            hint="capture the states from the verifier that the job names",
        )


def _verifier_folder(ctx: StageContext) -> Path:
    folder = find_model_folder(ctx.spec.verifier.model, ctx.spec.verifier.revision)
    if folder is None:
        raise UserError(
            f"the weights of {ctx.spec.verifier.model} are not on this worker",
            where="/verifier/model",
            hint="training needs the verifier's embedding, head and final norm: download it first",
        )
    return folder.resolve()


def _check_counted_on(ctx: StageContext) -> None:
    """A vocabulary says which tokens these rows teach: on other rows it would be silently wrong."""
    counted_on = _document(ctx.inputs["vocab"] / "report.json").get("counted_on")
    if counted_on != ctx.input_digests.get("capture"):
        raise UserError(
            f"the vocabulary was counted on other rows ({counted_on}) than the draft would train on "
            f"({ctx.input_digests.get('capture')})",
            where="vocab/report.json",
            hint="submit the job again: its vocab stage counts on the rows that it captured",
        )


def _draft_with_real_vocabulary(ctx: StageContext) -> Any:
    """The draft's vocabulary is what the vocab stage built; it must be what the job asks for."""
    folder = ctx.inputs["vocab"]
    target, draft = np.load(folder / "t2d.npy"), np.load(folder / "d2t.npy")
    asked = ctx.spec.draft.vocab_size
    if not (len(draft) == int(target.sum()) == asked):
        raise InternalError(
            f"the vocabulary files hold {int(target.sum())} and {len(draft)} tokens, the job asks for {asked}",
            where="vocab",
        )
    return ctx.spec.draft


def _coverage(ctx: StageContext) -> float:
    coverage = _document(ctx.inputs["vocab"] / "report.json").get("coverage_val")
    if not isinstance(coverage, int | float) or not 0 <= coverage <= 1:
        raise InternalError("the vocabulary's report has no coverage_val", where="vocab/report.json")
    return float(coverage)


def _document(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InternalError(f"an input cannot be read: {error}", where=path.name) from None
    return document


def _write(config: RunConfig) -> None:
    config.run.mkdir(parents=True, exist_ok=True)
    for name in (EVENTS_NAME, RESULT_NAME):
        (config.run / name).unlink(missing_ok=True)
    (config.run / DRAFT_CONFIG_NAME).write_text(json.dumps(config.shape, indent=1))
    (config.run / CONFIG_NAME).write_text(config.model_dump_json(indent=1))


def _warn_of_long_rows(ctx: StageContext, dataset: Path) -> None:
    limit = ctx.spec.train.pack_length
    with (dataset / INDEX_NAME).open() as rows:
        longer = sum(json.loads(row)["seq_len"] > limit for row in rows if row.strip())
    if longer:
        ctx.report.warn(f"{longer} rows are longer than train.pack_length ({limit}) and are cut to it")
