"""A published draft names its verifier so that others can load it."""

import pytest

from shared.verifier_config import public_model_name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.5"),
        ("/models/Kimi-K2.5/", "Kimi-K2.5"),
        ("/cache/hub/models--moonshotai--Kimi-K2.5/snapshots/0a1b2c3d", "moonshotai/Kimi-K2.5"),
    ],
)
def test_a_verifier_is_named_by_its_hub_id_or_its_folder_never_by_path_or_commit(model, name):
    assert public_model_name(model) == name
