"""How long stages take on this fleet: from its own latest jobs, where some are comparable.

Comparable is a stage that ran to its end, in one attempt, for the same verifier; of training also one with equal packs,
TTT steps and GPUs. Its seconds a unit are multiplied with the units of the planned stage; where the number of units
hardly matters, its seconds stand as they are.
"""

from collections.abc import Collection, Iterator
from statistics import median

from shared.estimate import starts_for_data
from shared.job_store import JobStore
from shared.schemas.job import JobRecord, Stage, StageRecord, StageStatus
from shared.schemas.plan import Plan
from shared.schemas.spec import JobSpec

LATEST_JOBS = 200
SCALED = frozenset({Stage.PREPARE, Stage.GENERATE, Stage.CAPTURE, Stage.TRAIN})


def add_seconds(plan: Plan, spec: JobSpec, silent: Collection[Stage], jobs: JobStore) -> None:
    """Fill in the times of a plan's stages, and of the whole where all are known; `silent` stages load no verifier."""
    latest = list(jobs.get_many(jobs.list_ids(limit=LATEST_JOBS)))
    units = dict.fromkeys(SCALED, plan.tokens.rows if plan.tokens else None) | {Stage.TRAIN: plan.steps}
    for stage in plan.stages:
        stage.seconds = 0.0 if stage.reused else _seconds(stage.name, spec, latest, units.get(stage.name))
    known = [stage.seconds for stage in plan.stages if stage.seconds is not None]
    if plan.stages and len(known) == len(plan.stages):
        load = plan.verifier_load_seconds if starts_for_data(spec, silent) else None  # evaluation's are in its own
        plan.seconds = round(sum(known) + (load or 0.0), 1)


def _seconds(name: Stage, spec: JobSpec, latest: list[JobRecord], units: int | None) -> float | None:
    found = list(_comparable(name, spec, latest))
    if name not in SCALED:
        return round(median(stage.seconds or 0.0 for stage in found), 1) if found else None
    rates = [
        (stage.seconds or 0.0) / stage.progress.total for stage in found if stage.progress and stage.progress.total
    ]
    return round(median(rates) * units, 1) if rates and units is not None else None


def _comparable(name: Stage, spec: JobSpec, latest: list[JobRecord]) -> Iterator[StageRecord]:
    for record in latest:
        stage = record.stage(name)
        whole = stage.status == StageStatus.SUCCEEDED and stage.seconds is not None and stage.attempt == 1
        if whole and record.spec.verifier.model == spec.verifier.model and _equal_work(name, spec, record.spec):
            yield stage


def _equal_work(name: Stage, spec: JobSpec, other: JobSpec) -> bool:
    if name == Stage.TRAIN:
        mine, theirs = spec.train, other.train
        return all(getattr(mine, field) == getattr(theirs, field) for field in ("pack_length", "ttt_steps", "gpus"))
    if name == Stage.EVALUATE:
        return spec.evaluate.mode == other.evaluate.mode and spec.evaluate.max_prompts == other.evaluate.max_prompts
    return spec.data.generate == other.data.generate
