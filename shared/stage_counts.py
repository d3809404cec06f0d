"""Running totals of the books of all stages, in Redis: what `/metrics` shows of items kept and rejected.

`eyrie:items` is a hash: a JSON list `[stage, unit, outcome, reason]` for each count. A stage run is counted once,
however often its result is recorded: `eyrie:items:counted:KEY:TOKEN` remembers it for a day.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from redis import Redis

from shared.schemas.accounting import Accounting
from shared.schemas.manifest import Manifest

COUNTS = "eyrie:items"
REMEMBERED_S = 86400

COUNT_ONCE = """
if not redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[1]) then return 0 end
for i = 2, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
"""


@dataclass(frozen=True)
class ItemCount:
    """How many items of a stage had one outcome; `reason` is empty for those that were kept."""

    stage: str
    unit: str
    outcome: str
    reason: str
    count: int


def count_items(redis: "Redis", manifest: Manifest) -> None:
    """Add the books of a stage that was just computed to the totals; a second call for it adds nothing.

    Raises:
        RedisError
    """
    if "accounting" not in manifest.summary:
        return
    books = Accounting.model_validate(manifest.summary["accounting"])
    counts = {("kept", ""): books.kept} | {("rejected", reason): n for reason, n in books.rejected.items()}
    arguments: list[str | int] = [REMEMBERED_S]
    for (outcome, reason), count in counts.items():
        arguments += [json.dumps([manifest.stage, books.unit, outcome, reason]), count]
    redis.eval(COUNT_ONCE, 2, COUNTS, f"{COUNTS}:counted:{manifest.key}:{manifest.token}", *arguments)


def read_counts(redis: "Redis") -> Iterator[ItemCount]:
    """Yield the totals, sorted.

    Raises:
        RedisError
    """
    counts = cast("dict[str, str]", redis.hgetall(COUNTS))
    for field in sorted(counts):
        stage, unit, outcome, reason = json.loads(field)
        yield ItemCount(stage, unit, outcome, reason, int(counts[field]))
