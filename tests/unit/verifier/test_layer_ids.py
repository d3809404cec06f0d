"""Which states are captured: distinct valid ids for every size, or a refusal that says what to give."""

import pytest

from services.verifier.model_config import VerifierConfigError, resolve_layer_ids
from shared.verifier_config import VerifierConfig
from shared.verifier_settings import default_layer_ids

pytestmark = pytest.mark.data

KIMI = "moonshotai/Kimi-K2.5"


def config_of(layers: int) -> VerifierConfig:
    return VerifierConfig(num_hidden_layers=layers, hidden_size=8, vocab_size=8, raw={})


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(4, [1, 2, 3, 4]), (5, [1, 2, 4, 5]), (6, [1, 3, 5, 6]), (7, [2, 3, 4, 7]), (61, [2, 30, 58, 61])],
)
def test_default_ids_are_low_middle_high_and_final(layers, expected):
    assert default_layer_ids(layers) == expected


@pytest.mark.parametrize("layers", range(4, 130))
def test_default_ids_are_distinct_valid_and_end_with_the_final_state(layers):
    ids = default_layer_ids(layers)
    assert ids == sorted(set(ids))
    assert len(ids) == 4
    assert ids[0] >= 1
    assert ids[-1] == layers


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_small_verifiers_are_refused_with_the_ids_to_give(layers):
    with pytest.raises(ValueError, match=f"verifier of {layers} layer.*give layer_ids yourself"):
        default_layer_ids(layers)


def test_the_refusal_reaches_the_user_typed_and_with_its_place():
    with pytest.raises(VerifierConfigError, match=r"models/three: .*such as \[1, 2, 3\].*EYRIE_VERIFIER_LAYER_IDS"):
        resolve_layer_ids(None, config_of(3), where="models/three")


def test_explicit_ids_suit_a_small_verifier():
    assert resolve_layer_ids([1, 2], config_of(2), where="m") == (1, 2)


def test_explicit_ids_are_sorted_and_the_final_state_is_added():
    assert resolve_layer_ids([3, 1], config_of(6), where="m") == (1, 3, 6)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 2], r"\[2\] are given twice"),
        ([0, 1], r"\[0\] do not exist: the model has 4 layers"),
        ([1, 5], r"\[5\] do not exist"),
        ([-1], r"\[-1\] do not exist"),
        ([], "no layer id is given"),
    ],
)
def test_ids_that_do_not_fit_are_refused(ids, message):
    with pytest.raises(VerifierConfigError, match=message):
        resolve_layer_ids(ids, config_of(4), where="m")


def test_kimis_layers_are_known_before_it_is_fetched():
    assert resolve_layer_ids(None, None, where=KIMI) == (2, 30, 58, 61)


def test_an_unknown_model_that_is_not_here_is_refused():
    with pytest.raises(VerifierConfigError, match="some/model: the model is not on this machine"):
        resolve_layer_ids([1, 2], None, where="some/model")
