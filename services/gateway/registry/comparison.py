"""Drafts side by side: what their evaluation reports share, and where their job documents differ.

Reports may have other suites and other numbers of speculative tokens. A suite is compared where at least two drafts
were measured on it, over the positions that all of them have; what is left out or not alike is said in `notes`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.gateway.registry.documents import Difference, DraftOrigin, differences
from services.gateway.wire import DraftView

Figures = Mapping[str, Any]
EXAMPLE: dict[str, Any] = {
    "object": "draft.comparison",
    "drafts": [],
    "suites": [
        {
            "name": "heldout",
            "num_speculative_tokens": 3,
            "same_prompts": True,
            "entries": [
                {
                    "draft": "draft_0123456789abcdef0123",
                    "mode": "vllm",
                    "num_speculative_tokens": 3,
                    "acceptance_length": 2.6,
                    "per_position": [0.81, 0.5, 0.29],
                    "untrained": {"mode": "vllm", "acceptance_length": 1.25, "per_position": [0.2, 0.04, 0.01]},
                    "gain": 2.08,
                }
            ],
        }
    ],
    "differences": [
        {"path": "/train/lr", "values": {"draft_0123456789abcdef0123": 3e-5, "draft_9876543210fedcba9876": 1e-4}}
    ],
    "notes": [],
}


class UntrainedFigures(BaseModel):
    """The same of the draft before its first training step."""

    mode: str = Field(description="`vllm`, or `offline`: an estimate from validation states.")
    acceptance_length: float | None
    per_position: list[float | None]


class ComparedEntry(BaseModel):
    """One draft on one suite, over the positions that are compared."""

    draft: str
    mode: str = Field(description="`vllm`, or `offline`: an estimate from validation states.")
    num_speculative_tokens: int = Field(description="With so many it was measured.")
    acceptance_length: float | None = Field(description="1 + the sum over the compared positions; null: no drafts.")
    per_position: list[float | None] = Field(description="Share of drafts accepted up to and including each position.")
    untrained: UntrainedFigures | None
    gain: float | None = Field(description="Acceptance length over that of the untrained draft, as a ratio.")


class ComparedSuite(BaseModel):
    """One suite that at least two of the drafts were measured on."""

    name: str
    num_speculative_tokens: int = Field(description="Positions that all entries have.")
    same_prompts: bool | None = Field(description="Whether all were asked from the same prompts; null: not known.")
    entries: list[ComparedEntry]


class DraftComparison(BaseModel):
    """Drafts side by side."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    object: Literal["draft.comparison"] = "draft.comparison"
    drafts: list[DraftView] = Field(description="In the order in which they were asked for.")
    suites: list[ComparedSuite]
    differences: list[Difference] = Field(description="Fields of the resolved job documents that are not equal.")
    notes: list[str] = Field(description="What was left out, cut, or measured differently.")


def compare(drafts: Sequence[DraftView], origins: Mapping[str, DraftOrigin]) -> DraftComparison:
    """Compare drafts.

    Args:
        origins: what each draft was made from, by its id.
    """
    fields, notes = differences(origins)
    notes += [f"{draft.id} has no evaluation report" for draft in drafts if not draft.evaluation.get("suites")]
    suites = []
    for name in _suite_names(drafts):
        measured = {draft.id: draft.evaluation for draft in drafts if name in draft.evaluation.get("suites", {})}
        if len(measured) < 2:
            notes.append(f"suite {name}: only {', '.join(measured)} was measured on it")
            continue
        suite = _suite(name, measured, origins)
        suites.append(suite)
        notes += _suite_notes(suite, measured)
    return DraftComparison(drafts=list(drafts), suites=suites, differences=fields, notes=notes)


def _suite_names(drafts: Sequence[DraftView]) -> list[str]:
    """Names of all suites, as the first draft that has one orders them."""
    return list(dict.fromkeys(name for draft in drafts for name in draft.evaluation.get("suites", {})))


def _suite(name: str, measured: Mapping[str, Figures], origins: Mapping[str, DraftOrigin]) -> ComparedSuite:
    k = min(int(report["num_speculative_tokens"]) for report in measured.values())
    prompts = [origins[draft].prompts(name) for draft in measured]
    return ComparedSuite(
        name=name,
        num_speculative_tokens=k,
        same_prompts=None if None in prompts else len(set(prompts)) == 1,
        entries=[_entry(draft, report, report["suites"][name], k) for draft, report in measured.items()],
    )


def _entry(draft: str, report: Figures, suite: Mapping[str, Figures], k: int) -> ComparedEntry:
    trained, before = suite["trained"], _untrained(suite.get("untrained"), k)
    length, earlier = _length(trained, k), before and before.acceptance_length
    return ComparedEntry(
        draft=draft,
        mode=trained["mode"],
        num_speculative_tokens=report["num_speculative_tokens"],
        acceptance_length=length,
        per_position=trained["per_position"][:k],
        untrained=before,
        gain=length / earlier if length is not None and earlier else None,
    )


def _untrained(figures: Figures | None, k: int) -> UntrainedFigures | None:
    if figures is None:
        return None
    return UntrainedFigures(
        mode=figures["mode"], acceptance_length=_length(figures, k), per_position=figures["per_position"][:k]
    )


def _length(figures: Figures, k: int) -> float | None:
    """The acceptance length over the first `k` positions; as it was measured where there are no more."""
    positions: list[float | None] = figures["per_position"]
    if len(positions) <= k:
        length: float | None = figures["acceptance_length"]
        return length
    known = [share for share in positions[:k] if share is not None]
    return 1 + sum(known) if len(known) == k else None


def _suite_notes(suite: ComparedSuite, measured: Mapping[str, Figures]) -> Iterator[str]:
    where, k = f"suite {suite.name}", suite.num_speculative_tokens
    numbers = {entry.draft: entry.num_speculative_tokens for entry in suite.entries}
    if len(set(numbers.values())) > 1:
        yield (
            f"{where}: measured with different numbers of speculative tokens ({_by_draft(numbers)}): compared over the "
            f"first {k} positions, which foretells how the others would do with {k}"
        )
    modes = {entry.draft: entry.mode for entry in suite.entries}
    if len(set(modes.values())) > 1:
        yield f"{where}: measured in different ways ({_by_draft(modes)}); an offline figure is an estimate"
    temperatures = {draft: report["temperature"] for draft, report in measured.items()}
    if len(set(temperatures.values())) > 1:
        yield f"{where}: measured at different temperatures ({_by_draft(temperatures)})"
    if suite.same_prompts is False:
        yield f"{where}: the drafts were asked different prompts"
    for entry in suite.entries:
        if entry.untrained is None:
            yield f"{where}: the untrained draft of {entry.draft} was not measured"
        elif entry.untrained.mode != entry.mode:
            yield f"{where}: the gain of {entry.draft} compares {entry.mode} with {entry.untrained.mode}"


def _by_draft(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{draft}: {value}" for draft, value in values.items())
