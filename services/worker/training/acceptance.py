"""Acceptance length out of per-position accuracies: what validation foretells for vLLM at temperature 0."""

from collections.abc import Mapping, Sequence


def expected_acceptance(full_accuracy: Sequence[float], coverage: float) -> list[float]:
    """Correct accuracies for tokens that the draft vocabulary lacks.

    speculators compares draft and verifier inside the draft vocabulary. Where the verifier's own token lies outside
    of it (a share of 1 - coverage), the draft cannot be right, and nor can any position after it in the same proposal.

    Args:
        full_accuracy: share of proposals whose positions 0..i are all right, by i; each in [0, 1].
        coverage: share of supervised tokens inside the draft vocabulary, in [0, 1].
    """
    return [value * coverage ** (index + 1) for index, value in enumerate(full_accuracy)]


def acceptance_length(per_position: Sequence[float]) -> float:
    """Tokens a step of the verifier yields: its own bonus token plus the accepted ones, in [1, k + 1]."""
    return 1.0 + sum(per_position)


def full_accuracies(metrics: Mapping[str, float]) -> list[float]:
    """`full_acc_0`, `full_acc_1`, ... as a list, as far as they go."""
    found: list[float] = []
    while (value := metrics.get(f"full_acc_{len(found)}")) is not None:
        found.append(value)
    return found
