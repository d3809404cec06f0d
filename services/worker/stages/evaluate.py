"""evaluate: measures how many tokens of the draft the verifier accepts, on prompts that training never saw.

In: `prepare` (held-out conversations), `train` (`draft/`, `untrained/`), `capture` and `vocab` (for offline estimates),
`suite:NAME` datasets, `compare` (another draft). Out: `report.json`. In mode `vllm`, exactly the trained folder is
served beside the verifier, and acceptance comes from differences of vLLM's counters; the same for the untrained draft.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.worker.data.concurrency import for_each
from services.worker.data.exchange import request_tag
from services.worker.data.request_times import RequestTimes
from services.worker.data.verifier_client import RowRefused, VerifierClient
from services.worker.evaluation.acceptance import acceptance, evaluation_sampling, settled_counters
from services.worker.evaluation.offline import estimate_acceptance
from services.worker.evaluation.prompts import Prompt, Suite, read_suite, suite_books
from services.worker.stage_clock import VERIFIER_LOADING, VERIFIER_READY
from services.worker.stage_context import StageContext
from services.worker.supervision import RUN_TOKEN_VARIABLE
from services.worker.verifier_process import running_verifier
from services.worker.verifier_report import VerifierReport
from services.worker.verifier_session import served_model_name, verifier_fields
from shared.errors import VerifierError
from shared.schemas.spec import EvaluateSpec, ManagedVerifier, SamplingSpec
from shared.verifier_config import read_verifier_config
from shared.verifier_settings import VerifierSettings

MIN_MODEL_LEN = 256


def run(ctx: StageContext) -> dict[str, Any]:
    """Evaluate the trained draft against the untrained one and, when named, another draft.

    Returns:
        The report: per suite and draft `acceptance_length`, `per_position` and the counts they come from, and the gate.

    Raises:
        UserError: a suite has no usable prompt.
        VerifierError: vLLM does not start with the draft, or answers too few prompts.
    """
    evaluate = ctx.spec.evaluate
    suites = [read_suite(ctx, suite) for suite in evaluate.suites]
    modes = {"trained": evaluate.mode}
    if evaluate.baseline != "none":
        modes["untrained"] = "offline" if evaluate.mode == "offline" else evaluate.baseline
    if "compare" in ctx.inputs:
        modes["compare"] = evaluate.mode
    results: dict[str, dict[str, Any]] = {suite.name: {} for suite in suites}
    offline = {name: _offline(ctx, _draft_folder(ctx, name)) for name, mode in modes.items() if mode == "offline"}
    prompts = sum(len(suite.prompts) for suite in suites)
    total = prompts * sum(mode == "vllm" for mode in modes.values())
    done = 0
    for draft, mode in modes.items():
        measured = asyncio.run(_in_vllm(ctx, draft, suites, done, total)) if mode == "vllm" else {}
        done += prompts if mode == "vllm" else 0
        for name in results:
            results[name][draft] = measured.get(name) or offline[draft]
    report = {
        "mode": evaluate.mode,
        "num_speculative_tokens": evaluate.num_speculative_tokens,
        "temperature": evaluate.temperature,
        "suites": results,
        "gate": judge(evaluate, results[evaluate.suites[0].name]),
    }
    (ctx.out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return {**report, "accounting": suite_books(suites).model_dump()}


def judge(evaluate: EvaluateSpec, first_suite: dict[str, Any]) -> dict[str, Any]:
    """Apply the gate to the first suite: `passed`, `failed`, or `none` where nothing is asked."""
    gate, failures = evaluate.gate, []
    trained = first_suite["trained"]["acceptance_length"]
    untrained = first_suite.get("untrained", {}).get("acceptance_length")
    if gate.min_acceptance_length is not None and (trained is None or trained < gate.min_acceptance_length):
        failures.append(f"acceptance length {trained} is below {gate.min_acceptance_length}")
    if gate.min_gain is not None:
        gain = trained / untrained if trained and untrained else None
        if gain is None or gain < gate.min_gain:
            failures.append(f"gain {gain} over the untrained draft is below {gate.min_gain}")
    asked = gate.min_acceptance_length is not None or gate.min_gain is not None
    return {
        "result": ("failed" if failures else "passed") if asked else "none",
        "failures": failures,
        "mode": evaluate.mode,
    }


async def _in_vllm(
    ctx: StageContext, draft: str, suites: Sequence[Suite], done: int, total: int
) -> dict[str, dict[str, Any]]:
    spec = ctx.spec
    sampling = evaluation_sampling(spec.data.sampling, spec.evaluate.temperature, spec.evaluate.max_tokens)
    settings = VerifierSettings.model_validate(
        {
            **verifier_fields(spec, Path(spec.verifier.model), on_gpu=bool(ctx.gpus)),
            "tensor_parallel_size": max(1, len(ctx.gpus)),
            "mode": "draft",
            "draft_path": _draft_folder(ctx, draft),
            "num_speculative_tokens": spec.evaluate.num_speculative_tokens,
            "max_model_len": _model_len(Path(spec.verifier.model), spec.data.max_seq_len + sampling.max_tokens),
            "max_num_seqs": spec.evaluate.concurrency,
        }
    )
    mark = f"{_own_mark(ctx)}.{draft}"
    timeout_s = (spec.verifier.managed or ManagedVerifier()).start_timeout_s
    ctx.report.progress(done, max(total, 1), "prompts", activity=f"starting vLLM with the {draft} draft")
    ctx.report.event(VERIFIER_LOADING, draft=draft)
    config, log_path = read_verifier_config(Path(spec.verifier.model)), ctx.work / f"vllm-{draft}.log"
    with (
        VerifierReport(settings, config, ctx.report.verifier, ctx.report.verifier_gone, draft=draft) as told,
        running_verifier(settings, mark=mark, log_path=log_path, timeout_s=timeout_s, loading=told.loading) as url,
    ):
        told.ready(url)
        ctx.report.event(VERIFIER_READY, draft=draft)
        ctx.report.progress(done, max(total, 1), "prompts")
        measured = {}
        concurrency = spec.evaluate.concurrency
        times = RequestTimes(ctx.report.figures)
        async with VerifierClient(url, served_model_name(spec), ctx.exchange, concurrency, times=times) as client:
            client.model = await client.check_model()
            for suite in suites:
                before = await settled_counters(client.http)
                answered, tokens = await _answer(ctx, client, suite, sampling, done, total)
                after = await settled_counters(client.http)
                figures = acceptance(before, after, spec.evaluate.num_speculative_tokens)
                measured[suite.name] = {**figures, "prompts": answered, "answer_tokens": tokens, "mode": "vllm"}
                done += len(suite.prompts)
        return measured


async def _answer(
    ctx: StageContext,
    client: VerifierClient,
    suite: Suite,
    sampling: SamplingSpec,
    done: int,
    total: int,
) -> tuple[int, int]:
    finished, tokens = 0, []

    async def work(numbered: tuple[int, Prompt]) -> None:
        nonlocal finished
        number, prompt = numbered
        request_id = f"{request_tag(ctx.job_id, ctx.token)}-evaluate-{number}"
        try:
            tokens.append(await _answer_tokens(client, prompt, sampling, request_id))
        except RowRefused as refusal:
            suite.refused.setdefault(number, refusal.reason)
            ctx.report.warn(f"evaluation prompt {number}: {refusal.message}")
        finished += 1
        ctx.report.progress(done + finished, total, "prompts")

    await for_each(enumerate(suite.prompts), min(ctx.spec.evaluate.concurrency, len(suite.prompts)), work)
    if not tokens:
        raise VerifierError("no evaluation prompt was answered", where=client.endpoint)
    return len(tokens), sum(tokens)


async def _answer_tokens(client: VerifierClient, prompt: Prompt, sampling: SamplingSpec, request_id: str) -> int:
    if prompt.input_ids is not None:
        return len(await client.continue_ids(prompt.input_ids, sampling, request_id=request_id))
    answer = await client.chat(prompt.messages or [], sampling, request_id=request_id, tools=prompt.tools)
    return len(answer.answer_ids)


def _model_len(verifier: Path, tokens: int) -> int:
    """Room for a prompt and its answer, as far as the verifier's context reaches."""
    context = read_verifier_config(verifier).context
    wanted = max(MIN_MODEL_LEN, tokens)
    return wanted if context is None else min(wanted, context)


def _offline(ctx: StageContext, folder: Path) -> dict[str, Any]:
    return estimate_acceptance(
        folder,
        Path(ctx.spec.verifier.model),
        ctx.inputs["capture"] / "dataset",
        ctx.spec.evaluate.num_speculative_tokens,
        device="cuda" if ctx.gpus else "cpu",
    )


def _draft_folder(ctx: StageContext, draft: str) -> Path:
    if draft == "compare":
        return ctx.inputs["compare"]
    return ctx.inputs["train"] / {"trained": "draft", "untrained": "untrained"}[draft]


def _own_mark(ctx: StageContext) -> str:
    return os.environ.get(RUN_TOKEN_VARIABLE, f"{ctx.token}.{ctx.stage}")
