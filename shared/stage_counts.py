"""Running totals of all computed stages, in Redis: what `/metrics` shows of items, samples, tokens, times and drafts.

`eyrie:items` is a hash: a JSON list `[stage, unit, outcome, reason]` for each count of the books; the rest is in
`shared.figures`. A stage run is counted once, however often its result is recorded: `eyrie:items:counted:KEY:TOKEN`
remembers it for a day.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis

from shared.figures import ACCEPTANCE, DRAFTS, FIGURES, SAMPLES, STAGE_SECONDS, TOKENS, Tally
from shared.schemas.accounting import Accounting
from shared.schemas.job import Stage
from shared.schemas.manifest import Manifest

COUNTS = "eyrie:items"
REMEMBERED_S = 86400

# KEYS: items, figures, counted; ARGV: seconds, how many items, then pairs of field and amount, those of items first.
COUNT_ONCE = """
if not redis.call('SET', KEYS[3], '1', 'NX', 'EX', ARGV[1]) then return 0 end
local items = tonumber(ARGV[2])
for i = 3, #ARGV, 2 do
    if (i - 3) / 2 < items then redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
    else redis.call('HINCRBYFLOAT', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
return 1
"""
# What a stage's summary calls its tokens and samples, and how the totals call the tokens.
TOKEN_COUNTS = {
    Stage.GENERATE: {"prompt_tokens": "prompt", "answer_tokens": "answer"},
    Stage.TRAIN: {"tokens": "trained"},
}
SAMPLE_COUNTS = {Stage.GENERATE: "rows", Stage.CAPTURE: "kept", Stage.TRAIN: "samples"}


@dataclass(frozen=True)
class ItemCount:
    """How many items of a stage had one outcome; `reason` is empty for those that were kept."""

    stage: str
    unit: str
    outcome: str
    reason: str
    count: int


def count_stage(redis: "Redis", manifest: Manifest) -> None:
    """Add a stage that was just computed to the totals; a second call for it adds nothing.

    Raises:
        RedisError
    """
    items = _items(manifest)
    pairs = [*items.items(), *_figures(manifest).amounts.items()]
    arguments = [part for pair in pairs for part in pair]
    counted = f"{COUNTS}:counted:{manifest.key}:{manifest.token}"
    redis.eval(COUNT_ONCE, 3, COUNTS, FIGURES, counted, REMEMBERED_S, len(items), *arguments)


def read_counts(redis: "Redis") -> Iterator[ItemCount]:
    """Yield the totals of items, sorted.

    Raises:
        RedisError
    """
    counts = cast("dict[str, str]", redis.hgetall(COUNTS))
    for field in sorted(counts):
        stage, unit, outcome, reason = json.loads(field)
        yield ItemCount(stage, unit, outcome, reason, int(counts[field]))


def _items(manifest: Manifest) -> dict[str, int]:
    if "accounting" not in manifest.summary:
        return {}
    books = Accounting.model_validate(manifest.summary["accounting"])
    counts = {("kept", ""): books.kept} | {("rejected", reason): n for reason, n in books.rejected.items()}
    return {json.dumps([manifest.stage, books.unit, *outcome]): count for outcome, count in counts.items()}


def _figures(manifest: Manifest) -> Tally:
    tally, stage, summary = Tally(), manifest.stage, manifest.summary
    tally.observe(STAGE_SECONDS, [stage], manifest.seconds)
    for name, kind in TOKEN_COUNTS.get(stage, {}).items():
        if isinstance(amount := summary.get(name), int | float):
            tally.count(TOKENS, [stage, kind], amount)
    if isinstance(amount := summary.get(SAMPLE_COUNTS.get(stage, "")), int | float):
        tally.count(SAMPLES, [stage], amount)
    if stage == Stage.EVALUATE:
        _count_acceptance(tally, summary)
    if stage == Stage.PUBLISH and "gate" in summary:
        tally.count(DRAFTS, [str(summary["gate"])])
    return tally


def _count_acceptance(tally: Tally, summary: dict[str, Any]) -> None:
    suites = list(summary.get("suites", {}).values())
    for draft, figures in suites[0].items() if suites else ():
        if (length := figures.get("acceptance_length")) is not None:
            tally.observe(ACCEPTANCE, [draft, figures.get("mode", "")], float(length))
