"""The verifier over HTTP: bounded attempts, waits that are honoured, refusals that are named, a breaker."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from services.worker.data import verifier_client, verifier_failures
from services.worker.data.verifier_client import RowRefused, VerifierClient
from shared.errors import UserError, VerifierError
from shared.schemas.spec import SamplingSpec
from tests.support.verifier_stub import END, END_THINK, Script, VerifierStub, render, words

pytestmark = pytest.mark.data
QUESTION = [{"role": "user", "content": "prompt 1"}]


@pytest.fixture
def stub(tmp_path, monkeypatch):
    monkeypatch.setattr(verifier_failures, "FIRST_BACKOFF_S", 0.001)
    with VerifierStub(tmp_path) as running:
        yield running


def with_client(stub, action, model="tiny-verifier", timeout_s=30.0):
    async def run():
        async with VerifierClient(stub.url, model, stub.exchange, 4, timeout_s) as client:
            return await action(client)

    return asyncio.run(run())


def ask(stub, messages=QUESTION, *, timeout_s=30.0, **options):
    return with_client(
        stub, lambda client: client.chat(messages, SamplingSpec(), request_id="row-1", **options), timeout_s=timeout_s
    )


def refusal(stub, **options):
    with pytest.raises(RowRefused) as caught:
        ask(stub, **options)
    return caught.value


def test_the_ids_kept_are_those_that_the_verifier_read_and_wrote(stub):
    stub.plan("prompt 1", Script(token_ids=(77, 500, 77), content="text that would encode otherwise"))
    answer = ask(stub)
    assert answer.prompt_ids == render(QUESTION)
    assert answer.answer_ids == [77, 500, 77]


def test_an_answer_has_its_reasoning_apart(stub):
    answer = ask(stub)
    assert (answer.content, answer.reasoning) == ("the answer to 1", "we look at 1")
    assert answer.answer_ids == [*words("we look at 1"), END_THINK, *words("the answer to 1"), END]
    assert answer.states is None


def test_sampling_and_tools_reach_the_verifier(stub):
    ask(stub, seed=5, tools=[{"type": "function"}], capture=False)
    body = stub.chats()[0].body
    assert body["temperature"] == 1.0
    assert body["top_p"] == 0.95
    assert body["seed"] == 5
    assert body["tools"] == [{"type": "function"}]
    assert body["return_token_ids"] is True
    assert body["chat_template_kwargs"] == {"thinking": True}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_failure_is_tried_again(stub, status):
    stub.plan("prompt 1", Script(status=status), Script(status=status))
    assert ask(stub).content == "the answer to 1"
    assert len(stub.chats()) == 3


def test_a_dropped_connection_is_tried_again(stub):
    stub.plan("prompt 1", Script(drop=True))
    assert ask(stub).content == "the answer to 1"


def test_an_answer_that_takes_too_long_is_asked_for_again(stub):
    stub.plan("prompt 1", Script(delay_s=3.0))
    assert ask(stub, timeout_s=1.0).content == "the answer to 1"
    assert len(stub.chats()) >= 2


def test_retry_after_is_honoured(stub):
    stub.plan("prompt 1", Script(status=429, retry_after="0.4"))
    ask(stub)
    first, second = stub.chats()
    assert second.at - first.at >= 0.4


def test_retry_after_may_be_a_date(stub):
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    stub.plan("prompt 1", Script(status=503, retry_after=format_datetime(moment, usegmt=True)))
    ask(stub)
    assert len(stub.chats()) == 2
    assert datetime.now(UTC) >= moment


@pytest.mark.parametrize("given", ["soon", "nan", "inf", "-1", "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 99 Foo"])
def test_a_retry_after_that_asks_for_no_wait_is_not_waited_for(stub, given):
    stub.plan("prompt 1", Script(status=503, retry_after=given))
    assert ask(stub).content == "the answer to 1"
    assert len(stub.chats()) == 2


def test_attempts_are_bounded(stub):
    stub.plan("prompt 1", *[Script(status=503)] * 20)
    assert refusal(stub).reason == "verifier_failed"
    assert len(stub.chats()) == verifier_client.ATTEMPTS


def test_a_context_that_is_too_long_is_named_and_not_tried_again(stub):
    stub.plan("prompt 1", Script(status=400, error="This model's maximum context length is 64 tokens"))
    assert refusal(stub).reason == "prompt_too_long"
    assert len(stub.chats()) == 1


def test_any_other_refusal_is_named_by_its_code(stub):
    stub.plan("prompt 1", Script(status=422, error="bad field"))
    problem = refusal(stub)
    assert problem.reason == "refused_422"
    assert "bad field" in problem.message


@pytest.mark.parametrize(
    ("script", "reason"),
    [(Script(no_choices=True), "no_choices"), (Script(finish_reason="content_filter"), "content_filter")],
)
def test_an_answer_that_cannot_be_used_is_refused_by_its_reason(stub, script, reason):
    stub.plan("prompt 1", script)
    assert refusal(stub).reason == reason


def test_half_a_thought_is_no_content(stub):
    stub.plan("prompt 1", Script(content=None, reasoning="half a", finish_reason="length"))
    answer = ask(stub)
    assert (answer.content, answer.reasoning, answer.finish_reason) == ("", "half a", "length")


def test_a_verifier_that_fails_request_after_request_is_taken_for_down(stub, monkeypatch):
    monkeypatch.setattr(verifier_client, "BREAKER_FAILURES", 3)

    async def ask_on(client):
        stub.gone = True
        for number in range(10):
            with contextlib.suppress(RowRefused):
                await client.chat(QUESTION, SamplingSpec(), request_id=str(number))

    with pytest.raises(VerifierError, match="3 requests in a row"):
        with_client(stub, ask_on)


def test_a_refusal_shows_that_the_verifier_is_up(stub, monkeypatch):
    monkeypatch.setattr(verifier_client, "BREAKER_FAILURES", 2)
    down = [Script(status=503)] * verifier_client.ATTEMPTS
    stub.plan("prompt 1", *down, Script(status=400), *down)

    async def ask_three(client):
        reasons = []
        for number in range(3):
            with pytest.raises(RowRefused) as caught:
                await client.chat(QUESTION, SamplingSpec(), request_id=str(number))
            reasons.append(caught.value.reason)
        return reasons

    assert with_client(stub, ask_three) == ["verifier_failed", "refused_400", "verifier_failed"]


def test_states_lie_in_the_exchange_folder_whatever_path_the_verifier_sees(stub):
    answer = ask(stub, capture=True)
    assert answer.states is not None
    assert answer.states.parent == stub.exchange
    assert answer.states.name.startswith("chatcmpl-row-1-")


def test_a_verifier_that_captures_nothing_is_named(stub):
    stub.plan("prompt 1", Script(states="unnamed"))
    with pytest.raises(VerifierError, match="without hidden states"):
        ask(stub, capture=True)


def test_states_of_another_request_are_left_alone(stub):
    stub.plan("prompt 1", Script(states="another_request"))
    assert ask(stub, capture=True).states is None


def test_a_verifier_that_returns_no_token_ids_is_named(stub):
    stub.plan("prompt 1", Script(states="no_ids"))
    with pytest.raises(VerifierError, match="holds no token ids"):
        ask(stub)


def test_one_answer_without_token_ids_is_refused_by_itself(stub):
    stub.plan("prompt 1", Script(), Script(states="no_ids"))

    async def ask_twice(client):
        await client.chat(QUESTION, SamplingSpec(), request_id="a")
        with pytest.raises(RowRefused) as caught:
            await client.chat(QUESTION, SamplingSpec(), request_id="b")
        return caught.value.reason

    assert with_client(stub, ask_twice) == "no_token_ids"


def test_the_states_of_an_answer_that_cannot_be_used_are_named(stub):
    async def ask_once(client):
        with pytest.raises(RowRefused) as caught:
            await client.chat(QUESTION, SamplingSpec(), request_id="row-1", capture=True)
        return caught.value.states

    stub.plan("prompt 1", Script(finish_reason="content_filter"))
    assert with_client(stub, ask_once).name.startswith("chatcmpl-row-1-")


@pytest.mark.parametrize("model", ["tiny-verifier", None])
def test_the_served_model_is_recognised(stub, model):
    assert with_client(stub, lambda client: client.check_model(), model) == "tiny-verifier"


def test_another_model_is_refused_by_both_names(stub):
    with pytest.raises(UserError, match=r"serves tiny-verifier, the job wants Kimi-K2\.5"):
        with_client(stub, lambda client: client.check_model(), "Kimi-K2.5")


def test_an_endpoint_that_is_down_is_an_upstream_error(stub):
    stub.gone = True
    with pytest.raises(VerifierError):
        with_client(stub, lambda client: client.check_model())
