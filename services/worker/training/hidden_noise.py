"""Uniform noise on the auxiliary states that the draft reads while it trains; off by default.

The target (the verifier's last state) and the validation split are never touched. Noise depends on seed, step and rank
only, so that a resumed run sees the same.
"""

from typing import Any

import torch

RANKS = 1 << 10
STEPS = 1 << 32


class HiddenNoise:
    """Adds noise out of [-amplitude, amplitude) to a training batch's `hidden_states` ([1, tokens, n_aux * H])."""

    def __init__(self, amplitude: float, seed: int, rank: int) -> None:
        self.amplitude, self.seed, self.rank = amplitude, seed, rank

    def __call__(self, model: torch.nn.Module, batch: dict[str, Any], step: int) -> dict[str, Any]:
        """Return the batch, with noise where `model` is in training mode."""
        if not self.amplitude or not model.training:
            return batch
        states = batch["hidden_states"]
        generator = torch.Generator(device=states.device)
        generator.manual_seed(((self.seed * STEPS + step) * RANKS + self.rank) % (1 << 63))
        noise = torch.empty_like(states).uniform_(-self.amplitude, self.amplitude, generator=generator)
        return {**batch, "hidden_states": states + noise}
