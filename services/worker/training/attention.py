"""Which attention the trainer uses, and why. The choice is recorded with every checkpoint."""

from typing import Literal

from shared.errors import UserError

Implementation = Literal["simple_flex_attention", "sdpa", "eager"]
NAMES: dict[str, Implementation] = {
    "flex": "simple_flex_attention",
    "sdpa": "sdpa",
    "eager": "eager",
}


def choose_attention(requested: str, device: str) -> tuple[Implementation, str]:
    """Return speculators' name of the implementation and the reason for it.

    Raises:
        UserError: flex attention is asked for on a CPU, where it has no backward pass.
    """
    if requested == "auto":
        if device == "cpu":
            return "sdpa", "auto: flex attention has no backward pass on a CPU"
        return "simple_flex_attention", "auto: flex attention skips the blocks between packed rows"
    if requested == "flex" and device == "cpu":
        raise UserError(
            "flex attention has no backward pass on a CPU",
            where="/train/attention",
            hint="give auto, sdpa or eager, or train on GPUs",
        )
    return NAMES[requested], "asked for"
