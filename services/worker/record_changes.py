"""What a live run writes into its job's record: a stage that starts or is done, and the end with a draft.

All functions alter the record in place: they are meant for `JobStore.update`. Those that end an attempt in any other
way are in `shared.attempts`.
"""

from services.worker.run_control import CancelRequested
from shared import attempts
from shared.schemas.job import JobRecord, JobStatus, Stage, StageStatus, now
from shared.schemas.manifest import Manifest
from shared.stage_keys import manifest_key


def start_stage(record: JobRecord, stage: Stage, key: str) -> None:
    """The stage runs, once more."""
    entry = record.stage(stage)
    entry.status, entry.key, entry.attempt = StageStatus.RUNNING, key, entry.attempt + 1
    entry.started_at, entry.finished_at, entry.seconds = now(), None, None


def finish_stage(record: JobRecord, manifest: Manifest, status: StageStatus) -> None:
    """The stage was run or reused; from now on the record refers to its manifest."""
    entry = record.stage(manifest.stage)
    entry.status, entry.key, entry.manifest = status, manifest.key, manifest_key(manifest.stage, manifest.key)
    entry.summary, entry.seconds = manifest.summary, manifest.seconds
    entry.started_at = entry.started_at or now()
    entry.finished_at = max(now(), entry.started_at)  # a clock may have been set back
    attempts.stand_still(entry)


def require_wanted(record: JobRecord) -> None:
    """Raise `CancelRequested` if somebody has cancelled the job."""
    if record.status == JobStatus.CANCELLING:
        raise CancelRequested


def succeed_with(record: JobRecord, draft_id: str) -> None:
    """The job has made its draft, and ends.

    Raises:
        CancelRequested: somebody was faster.
    """
    require_wanted(record)
    record.draft = draft_id
    attempts.succeed(record)
