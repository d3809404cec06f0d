"""One attempt at a job: its stages in order, and every way out of it written into the record."""

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from services.worker.gpu_locks import GpuLocks
from services.worker.gpus import LocalGpus, require_job_gpus
from services.worker.integrations import require_loggers
from services.worker.lending import DATA_STAGES, GoesBack, GuestControl, candidates, lend
from services.worker.record_changes import finish_stage, require_wanted, start_stage, succeed_with
from services.worker.redis_wait import GaveUp, insist
from services.worker.run_control import CancelRequested, PauseRequested, RunControl, WorkerStopping
from services.worker.stage_attempt import StageAttempt, StageFailed
from services.worker.stage_inputs import StageInputs
from services.worker.strays import sweep_states
from services.worker.supervision import end_tree
from services.worker.verifier_session import LentVerifier, VerifierSession
from shared import attempts
from shared.draft_entries import enter_draft, take_back_draft
from shared.errors import ArtifactStoreError, EyrieError, InternalError
from shared.fleet import Fleet
from shared.gpu_wishes import able_workers, wanted_gpus
from shared.job_store import Fenced, JobNotFound, JobStore
from shared.logs import log_context
from shared.queue import JobQueue
from shared.schemas.job import DONE_STAGES, ErrorDetail, JobRecord, JobStatus, Stage, StageStatus
from shared.schemas.manifest import Manifest
from shared.settings import Settings
from shared.stage_counts import count_stage

log = logging.getLogger(__name__)
LEFTOVER_GRACE_S = 5.0
EQUAL_JOB_POLL_S = 1.0
ABLE_WORKER_WAIT_S = 5.0  # until the message is sent again of a job that this worker lacks the GPUs for

T = TypeVar("T")


class JobRun:
    """Takes a job from where it stands to a terminal state, or as far as somebody lets it.

    Args:
        lender: has the job's verifier loaded; then its data is made, and it goes back into line.
    """

    def __init__(
        self,
        jobs: JobStore,
        queue: JobQueue,
        settings: Settings,
        control: RunControl,
        attempt: int,
        worker: str,
        lender: VerifierSession | None = None,
    ) -> None:
        self.jobs, self.queue, self.settings, self.control = jobs, queue, settings, control
        self.attempt, self.worker, self.lender = attempt, worker, lender
        self.job_id, self.token = control.job_id, control.token
        self.gpus = LocalGpus(settings.gpus, GpuLocks(settings.gpu_lock_folder, jobs.artifacts.root))

    def run(self) -> None:
        """Run the job's unfinished stages; every way out leaves a record that says what happened."""
        sweep_states(self.jobs, self.settings.exchange_root)
        try:
            self._run_to_the_end()
        except Fenced:
            log.warning("job %s: another attempt has taken over; this one changes nothing", self.job_id)
        except GaveUp as error:
            log.warning("job %s: left to the reconciler: %s", self.job_id, error)
        finally:
            end_tree(self.token, None, LEFTOVER_GRACE_S)
            with contextlib.suppress(GaveUp):
                self._insist(self._release)
            sweep_states(self.jobs, self.settings.exchange_root)

    def _run_to_the_end(self) -> None:
        try:
            record = self._begin()
            if record is not None:
                self.control.end_strays()
                publish, manifest = self._run_stages(record)
                self._finish(publish, manifest)
        except (CancelRequested, PauseRequested):
            self._end(attempts.settle)
        except WorkerStopping:
            self._follow(self._end(attempts.hand_over), first=self.lender is not None)
        except GoesBack as reason:
            self._follow(self._end(partial(attempts.give_back, message=str(reason))), first=True)
        except StageFailed as failure:
            self._fail(failure.detail)
        except EyrieError as error:
            self._fail(ErrorDetail.from_error(error))
        except (Fenced, JobNotFound, GaveUp):
            raise
        except OSError as error:
            log.exception("job %s: a file could not be written or read", self.job_id)
            self._fail(ErrorDetail.from_error(ArtifactStoreError(str(error), where=str(error.filename or ""))))
        except Exception as error:
            log.exception("job %s: defect", self.job_id)
            self._fail(ErrorDetail.from_error(InternalError(f"{type(error).__name__}: {error}")))

    def _begin(self) -> JobRecord | None:
        if not self._insist(lambda: self.jobs.acquire_run(self.job_id, self.token, self.settings.run_lease_s)):
            return None

        def begin(record: JobRecord) -> None:
            attempts.begin(record, self.attempt, self.token, self.worker)

        try:
            if self._insist(self._is_for_another):
                return None
            record = self._insist(lambda: self.jobs.update(self.job_id, begin))
            if self.lender is not None:
                self._insist(lambda: self.queue.remove(self.job_id, self.attempt))
            return record
        except attempts.NotThisAttempt:
            log.info("job %s: attempt %d is taken or over; its message is dropped", self.job_id, self.attempt)
            return None

    def _is_for_another(self) -> bool:
        """Leave a job in line that asks for more GPUs than this worker has, while a worker lives that has so many."""
        spec = self.jobs.get(self.job_id).spec
        most, here = max(wanted_gpus(spec).values()), len(self.gpus.ids)
        able = able_workers(spec, Fleet(self.jobs.redis).workers()) if most > here else []
        if not able:
            return False
        message = f"waits for a worker with {most} GPUs, such as {able[0].host}; {self.worker} has {here}"
        leave = partial(attempts.leave_in_line, attempt=self.attempt, message=message, wait_s=ABLE_WORKER_WAIT_S)
        self.jobs.update(self.job_id, leave)
        self.jobs.back_off(self.job_id, ABLE_WORKER_WAIT_S)
        return True

    def _run_stages(self, record: JobRecord) -> tuple[StageAttempt, Manifest]:
        """Have every stage's manifest referred to by the record; the last one is returned."""
        inputs = StageInputs(record.spec, self.jobs.artifacts)
        require_job_gpus(self.gpus, record.spec)
        require_loggers(record.spec)
        with self._session(record, inputs) as session:
            for stage in Stage:
                if self.lender is not None and stage not in DATA_STAGES:
                    raise GoesBack("its data is made; it waits for its turn to train")
                if not inputs.needs_verifier(stage):
                    self._lend(session)
                    session.close()
                inputs.require_same_verifier()
                attempt = StageAttempt(
                    record, stage, inputs, self.jobs.artifacts, self.settings, self.control, self.gpus
                )
                with log_context(stage=stage.value):
                    manifest = self._ensure_stage(record, attempt, session)
                inputs.add(manifest)
        return attempt, manifest

    def _session(self, record: JobRecord, inputs: StageInputs) -> VerifierSession:
        if self.lender is None:
            return VerifierSession(record.spec, inputs, self.control)
        if not self.lender.serves(record.spec, inputs):
            raise GoesBack("its verifier's files were just changed; it waits for its turn")
        return LentVerifier(self.lender, record.spec, inputs, self.control)

    def _lend(self, session: VerifierSession) -> None:
        """Before a managed verifier is stopped, have the data made of those in line that want the same one."""

        def run(guest: JobRecord, control: GuestControl) -> None:
            JobRun(self.jobs, self.queue, self.settings, control, guest.attempt, self.worker, session).run()

        waiting = self._insist(lambda: candidates(session, self.jobs, self.queue))
        lend(session, waiting, self.control, self.queue, run)

    def _ensure_stage(self, record: JobRecord, attempt: StageAttempt, session: VerifierSession) -> Manifest:
        needs_verifier = attempt.inputs.needs_verifier(attempt.stage)
        self.control.check()
        while (manifest := self._reused(record, attempt)) is None:
            if self.control.hold([attempt.lease]):
                try:
                    if attempt.finished() is not None:  # an equal job was faster
                        continue
                    return self._run_stage(attempt, session if needs_verifier else None)
                except StageFailed:
                    if attempt.finished() is None:  # else an equal job was first, and took our files away
                        raise
                finally:
                    self.control.release([attempt.lease])
            self._make_way(attempt.lease, session)
            self.control.wait(EQUAL_JOB_POLL_S)
        return manifest

    def _make_way(self, lease: str, session: VerifierSession) -> None:
        """Let go of a managed verifier while an equal job makes the stage: that may wait for the verifier's GPUs."""
        if self._insist(lambda: self.jobs.key_token(lease)) is None:
            return
        if self.lender is not None:
            raise GoesBack("an equal job makes its data; it waits for its turn")
        session.close()

    def _reused(self, record: JobRecord, attempt: StageAttempt) -> Manifest | None:
        """An earlier run's manifest, referred to by the record; None where there is none, or none any more.

        Retention takes back what nothing refers to; once the record refers to a manifest that is there, it stays.
        """
        manifest = attempt.finished()
        if manifest is None or record.stage(manifest.stage).status in DONE_STAGES:
            return manifest
        self._record_done(manifest, StageStatus.REUSED)
        return attempt.finished()

    def _run_stage(self, attempt: StageAttempt, session: VerifierSession | None) -> Manifest:
        attempt.set_aside_damaged()
        number = self._record_started(attempt.stage, attempt.key)
        manifest = attempt.run(number, session)
        self._insist(self._check_fence)
        manifest = attempt.commit(manifest)
        self._record_done(manifest, StageStatus.SUCCEEDED)
        if manifest.token == self.token and self.control.hold([attempt.lease]):  # nobody else works on this stage
            attempt.discard_others()
        return manifest

    def _check_fence(self) -> None:
        if self.jobs.owner(self.job_id) != self.token:
            raise Fenced(self.job_id)

    def _record_started(self, stage: Stage, key: str) -> int:
        record = self._update(partial(start_stage, stage=stage, key=key))
        self._event(stage, StageStatus.RUNNING)
        return record.stage(stage).attempt

    def _record_done(self, manifest: Manifest, status: StageStatus) -> None:
        self._update(partial(finish_stage, manifest=manifest, status=status))
        if status == StageStatus.SUCCEEDED:
            self._insist(lambda: count_stage(self.jobs.redis, manifest))
        self._event(manifest.stage, status)

    def _finish(self, publish: StageAttempt, manifest: Manifest) -> None:
        """Enter the draft and end the job with it; a cancel that comes before that end holds, and leaves no draft."""
        while not self.control.hold([publish.lease]):
            self.control.wait(EQUAL_JOB_POLL_S)
        self._update(require_wanted)
        draft_id = self._insist(lambda: enter_draft(self.jobs, self.job_id, manifest))
        try:
            self._end(partial(succeed_with, draft_id=draft_id))
        except (CancelRequested, Fenced, JobNotFound):
            self._insist(lambda: take_back_draft(self.jobs, self.job_id, manifest.key, self.token))
            raise

    def _fail(self, detail: ErrorDetail) -> None:
        self._follow(self._end(partial(attempts.fail, detail=detail, settings=self.settings)))

    def _follow(self, record: JobRecord, *, first: bool = False) -> None:
        """Put the next attempt in line, if one follows this one."""
        if record.status != JobStatus.RUNNING:
            return
        wait_s = record.retry_after_s
        if wait_s is not None:  # the reconciler puts it in line when the time has passed, and no run lives
            self._insist(lambda: self.jobs.back_off(self.job_id, wait_s))
        self._insist(self._release)
        if wait_s is None:
            self._insist(lambda: self.queue.enqueue(self.job_id, record.attempt, first=first))

    def _end(self, change: Callable[[JobRecord], None]) -> JobRecord:
        record = self._update(change)
        log.info("job %s: attempt %d is over, the job is %s", self.job_id, self.attempt, record.status)
        if record.status == JobStatus.CANCELLED:
            publish_key = record.stage(Stage.PUBLISH).key
            self._insist(lambda: take_back_draft(self.jobs, self.job_id, publish_key, self.token))
        return record

    def _update(self, change: Callable[[JobRecord], None]) -> JobRecord:
        return self._insist(lambda: self.jobs.update(self.job_id, change, token=self.token))

    def _insist(self, action: Callable[[], T]) -> T:
        return insist(action, self.job_id, self.control.stopping, self.settings.stop_grace_s)

    def _release(self) -> None:
        self.control.release(self.control.held)
        self.jobs.release_run(self.job_id, self.token)

    def _event(self, stage: Stage, status: StageStatus) -> None:
        log.info("job %s: %s is %s", self.job_id, stage, status)
        data = {"stage": stage, "status": status, "attempt": self.attempt}
        self._insist(lambda: self.jobs.append_event(self.job_id, "stage", data, token=self.token))
