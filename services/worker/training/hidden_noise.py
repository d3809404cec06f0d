"""Uniform noise on the auxiliary states that the draft reads while it trains; off by default.

The target (the verifier's last state) and the validation split are never touched. Noise depends on seed, step and rank
only, so that a resumed run sees the same.
"""

import hashlib
from typing import Any

import torch

SEED_BYTES = 4  # torch's CPU generator looks at the low 32 bits only


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
        generator.manual_seed(self._seed_of(step))
        noise = torch.empty_like(states).uniform_(-self.amplitude, self.amplitude, generator=generator)
        return {**batch, "hidden_states": states + noise}

    def _seed_of(self, step: int) -> int:
        digest = hashlib.sha256(f"{self.seed}/{step}/{self.rank}".encode()).digest()
        return int.from_bytes(digest[:SEED_BYTES], "big")
