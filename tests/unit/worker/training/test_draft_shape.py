"""The draft's decoder follows the job, then the verifier, and refuses what cannot be built."""

from typing import Any

import pytest

from shared.draft_shape import draft_shape
from shared.errors import UserError
from shared.presets import resolve
from shared.schemas.spec import DraftSpec

pytestmark = pytest.mark.data

KIMI = {
    "text_config": {
        "hidden_size": 7168,
        "vocab_size": 163840,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "v_head_dim": 128,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 262144,
        "rope_theta": 50000.0,
        "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096},
    }
}


def flat(**fields: Any) -> dict[str, Any]:
    return {"hidden_size": 96, "vocab_size": 512, "num_attention_heads": 4, **fields}


def test_the_preset_gives_the_shape_of_the_public_kimi_drafts() -> None:
    spec = resolve({"verifier": {"model": "moonshotai/Kimi-K2.5"}, "data": {"dataset": "ds_x"}})
    shape = draft_shape(spec.draft, KIMI)
    wanted = {
        "hidden_size": 7168,
        "vocab_size": 163840,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "head_dim": 128,
        "intermediate_size": 18432,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "layer_types": ["full_attention"],
        "sliding_window": None,
    }
    assert {name: shape[name] for name in wanted} == wanted


def test_a_latent_attention_verifier_gives_its_value_size_as_head_size_not_112_or_64() -> None:
    assert draft_shape(DraftSpec(), KIMI)["head_dim"] == 128


def test_absent_numbers_keep_the_verifiers_positions_and_rope() -> None:
    shape = draft_shape(DraftSpec(), KIMI)
    assert shape["max_position_embeddings"] == 262144
    assert shape["rope_parameters"] == {
        "rope_type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 4096,
        "rope_theta": 50000.0,
    }


def test_hidden_96_with_4_heads_of_32_is_kept_as_asked() -> None:
    shape = draft_shape(DraftSpec(vocab_size=128, head_dim=32), flat())
    assert (shape["num_attention_heads"], shape["head_dim"]) == (4, 32)


@pytest.mark.parametrize(
    ("draft", "verifier", "pointer"),
    [
        ({"num_attention_heads": 6}, flat(hidden_size=100), "/draft/head_dim"),
        ({}, flat(hidden_size=100, num_attention_heads=6), "/draft/head_dim"),
        ({"head_dim": 33}, flat(), "/draft/head_dim"),
        ({"num_key_value_heads": 3}, flat(), "/draft/num_key_value_heads"),
        ({"vocab_size": 513}, flat(), "/draft/vocab_size"),
        ({}, {"vocab_size": 512}, "/verifier/model"),
        ({}, flat(rope_scaling={"mrope_section": [1, 2, 3]}), "/draft/rope_theta"),
    ],
)
def test_shapes_that_cannot_be_are_refused_at_submit(
    draft: dict[str, Any], verifier: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(UserError) as refused:
        draft_shape(DraftSpec(**{"vocab_size": 128, **draft}), verifier)
    assert refused.value.where == pointer


def test_a_sliding_window_marks_every_layer() -> None:
    shape = draft_shape(DraftSpec(vocab_size=128, num_layers=2, sliding_window=64), flat())
    assert shape["layer_types"] == ["sliding_attention"] * 2
    assert (shape["sliding_window"], shape["use_sliding_window"]) == (64, True)


@pytest.mark.parametrize(
    ("rope", "kept"),
    [
        ({}, {"rope_type": "default", "rope_theta": 10000.0}),
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 1e4},
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0, "partial_rotary_factor": 0.5}},
            {"rope_type": "default", "rope_theta": 7.0},
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                }
            },
            {"rope_type": "default", "rope_theta": 1e6},
        ),
    ],
)
def test_each_form_in_which_a_verifier_describes_its_positions_is_followed(
    rope: dict[str, Any], kept: dict[str, Any]
) -> None:
    assert draft_shape(DraftSpec(vocab_size=128), flat(**rope))["rope_parameters"] == kept


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        {"rope_scaling": {"rope_type": "made-up"}},
        {"rope_parameters": [1]},
    ],
)
def test_positions_that_a_draft_cannot_follow_need_a_theta_of_its_own(rope: dict[str, Any]) -> None:
    with pytest.raises(UserError) as refused:
        draft_shape(DraftSpec(vocab_size=128), flat(**rope))
    assert refused.value.where == "/draft/rope_theta"
    own = draft_shape(DraftSpec(vocab_size=128, rope_theta=1e4), flat(**rope))
    assert own["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e4}
