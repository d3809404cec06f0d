"""publish: puts the draft, its model card and its history into one folder that vLLM loads, wherever it is copied.

In: all earlier stages. Out: the checkpoint (`config.json`, `model.safetensors`), `README.md` (model card),
`evaluation.json`, `train_config.json`, `eyrie.json`. The supervisor registers the draft.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.worker.stage_context import StageContext
from shared.artifact_store import link_or_copy
from shared.errors import InternalError
from shared.schemas.accounting import Accounting
from shared.verifier_config import public_model_name


def run(ctx: StageContext) -> dict[str, Any]:
    """Assemble the published folder.

    Returns:
        What the registry needs: `verifier`, `algorithm`, `evaluation`, `gate`.

    Raises:
        InternalError: the train stage left no checkpoint.
    """
    source = ctx.inputs["train"] / "draft"
    files = sorted(path for path in source.iterdir() if path.is_file())
    if not {"config.json", "model.safetensors"} <= {path.name for path in files}:
        raise InternalError("the trained draft lacks config.json or model.safetensors", where=str(source))
    for path in files:
        link_or_copy(path, ctx.out / path.name)
    evaluation = _read_json(ctx.inputs["evaluate"] / "report.json")
    trained = _read_json(ctx.inputs["train"] / "train_config.json")
    vocabulary = _read_json(ctx.inputs["vocab"] / "report.json")
    capture = _read_json(ctx.inputs["capture"] / "dataset" / "meta.json")
    link_or_copy(ctx.inputs["evaluate"] / "report.json", ctx.out / "evaluation.json")
    link_or_copy(ctx.inputs["train"] / "train_config.json", ctx.out / "train_config.json")
    summary = {
        "answers": "written by the verifier" if ctx.spec.data.generate else "taken from the dataset",
        "verifier": public_model_name(ctx.spec.verifier.model),
        "algorithm": ctx.spec.draft.algorithm,
        "evaluation": evaluation,
        "gate": evaluation["gate"]["result"],
        "accounting": Accounting(unit="drafts", taken=1, kept=1).model_dump(),
    }
    books = {name: entry.model_dump() for name, entry in ctx.books.items()}
    history = {
        **summary,
        "accounting": books,
        "layer_ids": capture["layer_ids"][:-1],
        "vocabulary": vocabulary,
        "data": capture,
    }
    (ctx.out / "eyrie.json").write_text(json.dumps(history, indent=1), encoding="utf-8")
    (ctx.out / "README.md").write_text(model_card(summary, capture, vocabulary, trained, ctx.books), encoding="utf-8")
    ctx.report.progress(1, 1, "drafts")
    return summary


def model_card(
    summary: dict[str, Any],
    capture: dict[str, Any],
    vocabulary: dict[str, Any],
    trained: dict[str, Any],
    books: Mapping[str, Accounting],
) -> str:
    """The draft's README: what it is for, how well it does, how to serve it, what it was made from."""
    k = summary["evaluation"]["num_speculative_tokens"]
    # A name with an owner is a hub id; any other is only the last part of a folder of the machine that trained.
    served = summary["verifier"] if "/" in summary["verifier"] else "PATH_OF_THE_VERIFIER"
    speculative = json.dumps({"method": "eagle3", "model": "PATH_OF_THIS_FOLDER", "num_speculative_tokens": k})
    return f"""---
library_name: speculators
tags: [speculative-decoding, {summary["algorithm"]}]
---
# {summary["algorithm"].upper()} draft for {summary["verifier"]}

A draft for speculative decoding: it guesses the next tokens, {summary["verifier"]} checks them all at once.

## Acceptance (k = {k}, temperature {summary["evaluation"]["temperature"]:g})

{_acceptance_table(summary["evaluation"])}

Acceptance length counts the verifier's own token, so it lies between 1 and {k + 1}. Gate: {summary["gate"]}.

## Serving

    vllm serve {served} --speculative-config '{speculative}'

with the verifier ({summary["verifier"]}) served as it is without a draft: the same parallelism and parsers.

## Made from

- {capture["num_train"]} training rows and {capture["num_val"]} held out, answers {summary["answers"]};
  {capture["supervised_train_tokens"]} supervised training tokens; hidden states of layers {capture["layer_ids"]}
  in {capture["dtype"]}.
- Draft vocabulary: {vocabulary["draft_vocab_size"]} of {vocabulary["target_vocab_size"]} tokens, which cover
  {_percent(vocabulary["coverage_val"])} of the held-out tokens.
- Training: see `train_config.json` ({trained.get("steps", "?")} steps). Files and inputs by hash: `eyrie lineage`.

{_books_table(books)}
"""


def _books_table(books: Mapping[str, Accounting]) -> str:
    """What became of everything that came in, stage by stage."""
    lines = ["| stage | in | kept | rejected |", "| --- | --- | --- | --- |"]
    for stage, entry in books.items():
        rejected = ", ".join(f"{count} {reason}" for reason, count in entry.rejected.items()) or "none"
        lines.append(f"| {stage} | {entry.taken} {entry.unit} | {entry.kept} | {rejected} |")
    return "\n".join(lines)


def _acceptance_table(evaluation: dict[str, Any]) -> str:
    k = evaluation["num_speculative_tokens"]
    header = "| suite | draft | acceptance length | " + " | ".join(f"position {i}" for i in range(k)) + " | measured |"
    lines = [header, "| --- " * (k + 4) + "|"]
    for suite, drafts in evaluation["suites"].items():
        for draft, figures in drafts.items():
            positions = " | ".join(_number(value) for value in figures["per_position"])
            length = _number(figures["acceptance_length"])
            lines.append(f"| {suite} | {draft} | {length} | {positions} | {figures['mode']} |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{int(value * 1000) / 1000:.3f}"  # cut, never rounded up


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{int(value * 1000) / 10:.1f} %"


def _read_json(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document
