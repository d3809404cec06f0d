"""What acceptance is measured on: held-out prompts of every form, and what is shown while vLLM starts."""

import asyncio
import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.worker.data.verifier_client import RowRefused, VerifierClient
from services.worker.evaluation.prompts import Prompt, first_prompt, read_suite
from services.worker.stage_supervisor import ProgressMeter
from services.worker.stages import evaluate
from shared.errors import UserError, VerifierError
from shared.schemas.spec import SamplingSpec, SuiteSpec
from tests.support.stage_runs import StageRunner, job_spec, write_verifier

pytestmark = pytest.mark.data

TOOLS = [{"type": "function"}]
ASKED = {"role": "user", "content": "how?"}
ANSWERED = {"role": "assistant", "content": "so"}


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"messages": [ASKED, ANSWERED, ASKED]}, Prompt(messages=[ASKED])),
        (
            {"messages": [ASKED], "tools": [{"type": "function"}]},
            Prompt(messages=[ASKED], tools=[{"type": "function"}]),
        ),
        ({"input_ids": [5, 6, 7, 8], "loss_mask": [0, 0, 1, 1]}, Prompt(input_ids=[5, 6])),
        ({"input_ids": [5, 6, 7, 8], "loss_mask": [0, 1, 0, 1]}, Prompt(input_ids=[5])),
        ({"input_ids": [5, 6, 7], "loss_mask": [1, 0, 1]}, None),  # nothing came before the first answer
        ({"input_ids": [5, 6, 7], "loss_mask": [0, 0, 0]}, None),
        ({"messages": [ANSWERED]}, None),
    ],
)
def test_a_prompt_is_what_came_before_the_first_answer(row: dict[str, Any], prompt: Prompt | None) -> None:
    assert first_prompt(row) == prompt


@pytest.fixture
def runner(tmp_path: Path) -> StageRunner:
    spec = job_spec(write_verifier(tmp_path / "tiny-verifier"), evaluate={"max_prompts": 3, "baseline": "none"})
    return StageRunner(tmp_path, spec, tmp_path / "dataset")


def prepared(runner: StageRunner, rows: list[dict[str, Any]]) -> None:
    folder = runner.root / "prepared"
    folder.mkdir()
    (folder / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runner.inputs["prepare"] = folder


def test_held_out_rows_of_messages_and_of_token_ids_are_asked_and_trained_ones_never(runner: StageRunner) -> None:
    ids = {"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]}
    rows = [{"split": "train", "messages": [ASKED]}, {"split": "val", **ids}, {"split": "val", "messages": [ASKED]}]
    prepared(runner, [*rows, {"split": "val", **ids}, {"split": "val", **ids}])
    found = read_suite(runner.context("evaluate"), SuiteSpec(name="heldout"))
    assert found.prompts == [Prompt(input_ids=[1, 2]), Prompt(messages=[ASKED]), Prompt(input_ids=[1, 2])]


def test_a_suite_without_a_prompt_is_named(runner: StageRunner) -> None:
    prepared(runner, [{"split": "val", "input_ids": [1, 2], "loss_mask": [1, 1]}])
    with pytest.raises(UserError, match="heldout has no usable prompt"):
        read_suite(runner.context("evaluate"), SuiteSpec(name="heldout"))


def continued(answer: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """What the client makes of vLLM's answer to token ids, and what it sent."""
    sent: dict[str, Any] = {}

    def handle(request: httpx.Request) -> httpx.Response:
        sent.update(json.loads(request.content), path=request.url.path, id=request.headers["X-Request-Id"])
        return httpx.Response(200, json=answer)

    async def ask() -> list[int]:
        async with VerifierClient("http://verifier", "m", Path(), 1) as client:
            client.http = httpx.AsyncClient(base_url="http://verifier", transport=httpx.MockTransport(handle))
            sampling = SamplingSpec(temperature=0.0, top_p=1.0, max_tokens=9)
            return await client.continue_ids([5, 6], sampling, request_id="tag-1")

    return asyncio.run(ask()), sent


def test_token_ids_are_sent_as_they_are_and_the_ids_of_the_answer_counted() -> None:
    ids, sent = continued({"choices": [{"token_ids": [7, 8, 9], "text": "x"}]})
    assert ids == [7, 8, 9]
    assert (sent["path"], sent["prompt"], sent["max_tokens"]) == ("/v1/completions", [5, 6], 9)
    assert (sent["temperature"], sent["return_token_ids"], sent["id"]) == (0.0, True, "tag-1")


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"text": "x"}]}])
def test_an_answer_without_ids_counts_for_nothing(answer: dict[str, Any]) -> None:
    with pytest.raises(RowRefused):
        continued(answer)


def test_whoever_watches_sees_that_vllm_starts(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = []

    @contextmanager
    def never(given: Any, **_: Any) -> Any:
        settings.append(given)
        raise VerifierError("it does not start")
        yield

    monkeypatch.setattr(evaluate, "running_verifier", never)
    prepared(runner, [{"split": "val", "messages": [ASKED]}])
    runner.inputs["train"] = runner.root
    with pytest.raises(VerifierError):
        runner.run(evaluate)
    shown = next(event for event in runner.events if event["type"] == "progress")
    assert shown["activity"] == "starting vLLM with the trained draft"
    assert ProgressMeter().measure(shown).activity == shown["activity"]
    assert settings[0].max_model_len == 256


def test_vllm_is_never_started_for_more_than_the_verifiers_context(tmp_path: Path) -> None:
    verifier = write_verifier(tmp_path / "v")  # of 4096 positions
    assert evaluate._model_len(verifier, 5000) == 4096
    assert evaluate._model_len(verifier, 1000) == 1000
    assert evaluate._model_len(verifier, 10) == evaluate.MIN_MODEL_LEN
