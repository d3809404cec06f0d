"""A job for another model than the fleet's verifier serves is refused when it is submitted."""

from typing import Any

import httpx
import pytest

from services.gateway.fleet_verifier import FleetVerifier
from shared.presets import resolve
from shared.submission import SubmissionError

pytestmark = pytest.mark.data

URL = "http://verifier:8000"


def fleet(answer: Any) -> tuple[FleetVerifier, list[str]]:
    """A verifier that gives `answer` (JSON, a status, or nothing), and what it was asked."""
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if answer is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(answer) if isinstance(answer, int) else httpx.Response(200, json=answer)

    return FleetVerifier(URL, httpx.MockTransport(handle)), asked


def serving(name: str, root: str) -> dict[str, Any]:
    return {"data": [{"id": name, "root": root}]}


def job(**verifier: Any) -> Any:
    preset = verifier.pop("preset", "kimi-k2.5")
    return resolve({"preset": preset, "data": {"dataset": "ds_x"}, **({"verifier": verifier} if verifier else {})})


def test_the_default_presets_model_is_refused_where_another_is_served() -> None:
    verifier, asked = fleet(serving("tiny-verifier", "/srv/assets/tiny-verifier"))
    with pytest.raises(SubmissionError) as refused:
        verifier.check(job())
    (error,) = refused.value.errors
    assert error.pointer == "/verifier/model"
    assert "tiny-verifier" in error.message
    assert "moonshotai/Kimi-K2.5" in error.message
    verifier.check(job(preset="tiny"))
    assert asked == [f"{URL}/v1/models"]  # an answer stands for a while


@pytest.mark.parametrize(
    ("name", "root"),
    [("moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.5"), ("Kimi-K2.5", "/models/x"), ("k", "/models/Kimi-K2.5/")],
)
def test_a_model_is_known_by_the_last_part_of_its_name_or_folder(name: str, root: str) -> None:
    fleet(serving(name, root))[0].check(job())


def test_jobs_with_a_verifier_of_their_own_are_not_checked_here() -> None:
    verifier, asked = fleet(serving("other", "other"))
    verifier.check(job(endpoint="http://elsewhere:1"))
    verifier.check(job(managed={}))
    FleetVerifier(None).check(job())
    FleetVerifier("").check(job())
    assert asked == []


@pytest.mark.parametrize("answer", [None, 500, 404])
def test_a_verifier_that_does_not_answer_is_no_reason_to_refuse_a_job(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fleet(answer)[0].check(job())
    assert "could not be asked" in caplog.text


@pytest.mark.parametrize("body", [[], {"data": None}, {"data": [3]}, {}])
def test_an_answer_of_another_form_names_no_model(body: Any) -> None:
    with pytest.raises(SubmissionError, match="cannot be accepted"):
        fleet(body)[0].check(job())
