"""Acceptance as people read it: one line a suite and draft."""

from typing import Any

from rich.table import Table


def acceptance_table(evaluation: dict[str, Any]) -> Table:
    """Acceptance length and per-position acceptance of an evaluation report.

    Figures are cut to three decimals, never rounded up.
    """
    k = evaluation["num_speculative_tokens"]
    table = Table(title=f"Acceptance (k = {k})", title_justify="left")
    for heading in ("suite", "draft", "length", *(f"position {position}" for position in range(k)), "measured"):
        table.add_column(heading)
    for suite, drafts in evaluation["suites"].items():
        for draft, figures in drafts.items():
            values = [figures["acceptance_length"], *figures["per_position"]]
            table.add_row(suite, draft, *(cut(value) for value in values), figures["mode"])
    return table


def cut(value: float | None) -> str:
    """A figure with three decimals, cut and never rounded up."""
    return "none" if value is None else f"{int(value * 1000) / 1000:.3f}"
