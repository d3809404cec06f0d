"""Who still needs a draft: jobs that have not ended and name it."""

from services.gateway.problems import Problem
from shared.job_store import JobStore
from shared.schemas.job import JobRecord
from shared.schemas.registry import DraftRecord

NAMED = 5


def require_unused(jobs: JobStore, draft: DraftRecord) -> None:
    """Make sure that no job which has not ended needs a draft.

    Raises:
        Problem: 409, with the jobs.
    """
    uses = [(record.id, use) for record in jobs.get_many(jobs.active_ids()) if (use := _use(record, draft))]
    if uses:
        shown = ", ".join(f"{job} {use}" for job, use in uses[:NAMED])
        more = f" and {len(uses) - NAMED} more" if len(uses) > NAMED else ""
        raise Problem(
            409, f"jobs that have not ended need the draft {draft.id}: {shown}{more}; wait for them, or cancel them"
        )


def _use(record: JobRecord, draft: DraftRecord) -> str | None:
    if draft.id in (record.draft, record.spec.evaluate.compare_to) or record.id == draft.job_id:
        return "compares with it" if record.spec.evaluate.compare_to == draft.id else "makes it"
    return None
