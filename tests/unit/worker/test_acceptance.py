"""Acceptance from vLLM's counters, the gate, and what the model card says of them."""

import pytest

from services.worker.evaluation.acceptance import acceptance, evaluation_sampling, parse_counters
from services.worker.stages.evaluate import judge
from services.worker.stages.publish import model_card
from shared.schemas.accounting import Accounting
from shared.schemas.spec import EvaluateSpec, SamplingSpec

pytestmark = pytest.mark.data


def page(drafts, proposed, accepted, per_position, engine="0"):
    labels = f'engine="{engine}",model_name="m"'
    lines = [
        "# TYPE vllm:spec_decode_num_drafts counter",
        f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}",
        f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7e9",
        "# TYPE vllm:spec_decode_num_draft_tokens counter",
        f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {proposed}",
        "# TYPE vllm:spec_decode_num_accepted_tokens counter",
        f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {accepted}",
        "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter",
        *(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{place}"}} {count}'
            for place, count in enumerate(per_position)
        ),
    ]
    return "\n".join(lines) + "\n"


def test_acceptance_counts_the_verifiers_own_token_and_only_the_difference():
    before = parse_counters(page(10, 30, 5, [5, 0, 0]))
    after = parse_counters(page(110, 330, 185, [95, 60, 30]))
    figures = acceptance(before, after, 3)
    assert figures["acceptance_length"] == 1 + 180 / 100
    assert figures["per_position"] == [0.9, 0.6, 0.3]
    assert (figures["drafts"], figures["draft_tokens"], figures["accepted_tokens"]) == (100, 300, 180)


@pytest.mark.parametrize(("accepted", "length"), [(0, 1.0), (30, 4.0)])
def test_acceptance_length_lies_between_one_and_k_plus_one(accepted, length):
    counters = parse_counters(page(10, 30, accepted, [accepted / 3] * 3))
    assert acceptance(parse_counters(""), counters, 3)["acceptance_length"] == length


def test_without_drafts_there_is_no_acceptance():
    counters = parse_counters(page(7, 21, 9, [5, 3, 1]))
    figures = acceptance(counters, counters, 3)
    assert figures["acceptance_length"] is None
    assert figures["per_position"] == [None] * 3


def test_counters_are_summed_over_engines():
    counters = parse_counters(page(10, 30, 12, [8, 4, 0]) + page(20, 60, 18, [9, 6, 3], engine="1"))
    assert (counters.drafts, counters.accepted) == (30, 30)
    assert counters.per_position == {0: 17, 1: 10, 2: 3}


def test_evaluation_samples_at_its_own_temperature_and_length():
    base = SamplingSpec(temperature=1.0, top_p=0.9, max_tokens=50)
    assert evaluation_sampling(base, 0.0, 9).model_dump(include={"temperature", "top_p", "max_tokens"}) == {
        "temperature": 0.0,
        "top_p": 1.0,
        "max_tokens": 9,
    }
    assert evaluation_sampling(base, 0.7, None).max_tokens == 50


def measured(trained, untrained=None):
    suite = {"trained": {"acceptance_length": trained}}
    return suite if untrained is None else {**suite, "untrained": {"acceptance_length": untrained}}


@pytest.mark.parametrize(
    ("gate", "suite", "result"),
    [
        ({}, measured(1.0), "none"),
        ({"min_acceptance_length": 2.0}, measured(2.0), "passed"),
        ({"min_acceptance_length": 2.0}, measured(1.99), "failed"),
        ({"min_acceptance_length": 2.0}, measured(None), "failed"),
        ({"min_gain": 1.5}, measured(3.0, 1.0), "passed"),
        ({"min_gain": 1.5}, measured(1.4, 1.0), "failed"),
        ({"min_gain": 1.5}, measured(3.0), "failed"),
        ({"min_acceptance_length": 2.0, "min_gain": 2.0}, measured(2.5, 2.0), "failed"),
    ],
)
def test_the_gate_passes_what_reaches_all_that_is_asked(gate, suite, result):
    judged = judge(EvaluateSpec(gate=gate), suite)
    assert judged["result"] == result
    assert bool(judged["failures"]) == (result == "failed")


def test_the_model_card_says_how_well_and_how_to_serve():
    figures = {"acceptance_length": 2.9996, "per_position": [0.9, 0.6, 0.5], "mode": "vllm"}
    unmeasured = {"acceptance_length": None, "per_position": [None] * 3, "mode": "offline"}
    suites = {"heldout": {"trained": figures, "untrained": unmeasured}}
    evaluation = {"num_speculative_tokens": 3, "temperature": 0.0, "suites": suites}
    summary = {
        "verifier": "org/Kimi-K2.5",
        "algorithm": "eagle3",
        "evaluation": evaluation,
        "gate": "passed",
        "answers": "taken from the dataset",
    }
    capture = {"num_train": 9, "num_val": 1, "supervised_train_tokens": 90, "layer_ids": [1, 2, 4], "dtype": "bfloat16"}
    vocabulary = {"draft_vocab_size": 64, "target_vocab_size": 512, "coverage_val": 0.9999}
    books = {"prepare": Accounting(unit="rows", taken=12, kept=10, rejected={"duplicate": 2})}
    card = model_card(summary, capture, vocabulary, {"steps": 12}, books)
    assert "| heldout | trained | 2.999 | 0.900 | 0.600 | 0.500 | vllm |" in card
    assert "| heldout | untrained | none | none | none | none | offline |" in card
    assert "between 1 and 4" in card
    assert "vllm serve org/Kimi-K2.5 --speculative-config" in card
    assert '"num_speculative_tokens": 3' in card
    assert "99.9 %" in card
    assert "answers taken from the dataset" in card
    assert "12 steps" in card
    assert "| prepare | 12 rows | 10 | 2 duplicate |" in card
    local = model_card({**summary, "verifier": "tiny-verifier"}, capture, vocabulary, {"steps": 12}, {})
    assert "vllm serve PATH_OF_THE_VERIFIER" in local
