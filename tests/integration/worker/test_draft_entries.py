"""A job that is cancelled, paused or killed in the moments in which it enters its draft and ends.

The runs are of this process, so that each moment can be met; their stages are reused from one job on a real worker.
"""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from services.gateway.job_actions import act
from services.gateway.reconciler import Reconciler
from services.gateway.registry.drafts import DraftRegistry
from services.worker import pipeline
from services.worker.pipeline import JobRun
from shared.draft_entries import enter_draft
from shared.schemas.job import JobRecord, JobStatus, Stage, StageStatus, UserAction
from shared.settings import Settings
from tests.support.stage_runs import prompts


class Killed(BaseException):
    """The worker is gone at once."""


@pytest.fixture(scope="module")
def made(shared_site):
    """The site, with all stages of the job that every test submits."""
    worker = shared_site.start_worker()
    record = shared_site.wait_for(shared_site.submit(prompts(3)), JobStatus.SUCCEEDED)
    worker.terminate()
    worker.wait(30)
    DraftRegistry(shared_site.store).delete(draft_of(shared_site, record), lambda: None)
    return shared_site


@pytest.fixture
def site(made):
    yield made
    for draft in DraftRegistry(made.store).all():
        DraftRegistry(made.store).delete(draft, lambda: None)


def draft_of(site, record: JobRecord):
    return DraftRegistry(site.store).find(record.draft)


def drafts(site) -> list[str]:
    """The jobs of the drafts that there are."""
    return [draft.job_id for draft in DraftRegistry(site.store).all()]


def ask(site, job_id: str, action: UserAction) -> None:
    act(SimpleNamespace(jobs=site.jobs, queue=site.queue), job_id, action)


def lose(site, job_id: str) -> JobRecord:
    """The reconciler finds out that the job's worker is gone."""
    clock = SimpleNamespace(seconds=0.0)
    reconciler = Reconciler(site.jobs, site.queue, Settings(run_lease_s=3), clock=lambda: clock.seconds)
    for _ in range(2):
        reconciler.round()
        clock.seconds += 60
    return site.jobs.get(job_id)


def before_entering(monkeypatch, what: Callable[[], None]) -> None:
    def enter(*arguments):
        what()
        return enter_draft(*arguments)

    monkeypatch.setattr(pipeline, "enter_draft", enter)


def after_entering(monkeypatch, what: Callable[[], None]) -> None:
    def enter(*arguments):
        monkeypatch.setattr(pipeline, "enter_draft", enter_draft)
        draft_id = enter_draft(*arguments)
        what()
        return draft_id

    monkeypatch.setattr(pipeline, "enter_draft", enter)


def as_publish_is_done(monkeypatch, what: Callable[[], None]) -> None:
    tell = JobRun._event

    def event(self, stage, status):
        tell(self, stage, status)
        if stage == Stage.PUBLISH:
            what()

    monkeypatch.setattr(JobRun, "_event", event)


def die() -> None:
    raise Killed


def killed_after_entering(site, monkeypatch, job_id: str) -> None:
    after_entering(monkeypatch, die)
    with pytest.raises(Killed):
        site.run_here(job_id)
    assert (drafts(site), site.jobs.get(job_id).status) == ([job_id], JobStatus.RUNNING)


MOMENTS = [as_publish_is_done, before_entering, after_entering]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_cancel_that_was_answered_leaves_no_draft(site, monkeypatch, moment):
    job_id = site.submit(prompts(3))
    moment(monkeypatch, lambda: ask(site, job_id, UserAction.CANCEL))
    record = site.run_here(job_id)
    assert (record.status, record.draft, drafts(site)) == (JobStatus.CANCELLED, None, [])
    assert [stage.status for stage in record.stages] == [StageStatus.REUSED] * len(Stage)
    equal = site.run_here(site.submit(prompts(3)))
    assert (equal.status, drafts(site)) == (JobStatus.SUCCEEDED, [equal.id])


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_cancel_takes_no_draft_from_an_equal_job_that_has_ended(site, monkeypatch, moment):
    first = site.run_here(site.submit(prompts(3)))
    job_id = site.submit(prompts(3))
    moment(monkeypatch, lambda: ask(site, job_id, UserAction.CANCEL))
    assert site.run_here(job_id).status == JobStatus.CANCELLED
    assert drafts(site) == [first.id]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_job_that_is_paused_as_it_ends_has_ended(site, monkeypatch, moment):
    job_id = site.submit(prompts(3))
    moment(monkeypatch, lambda: ask(site, job_id, UserAction.PAUSE))
    record = site.run_here(job_id)
    assert (record.status, drafts(site)) == (JobStatus.SUCCEEDED, [job_id])


def test_the_attempt_after_one_that_was_killed_with_its_draft_entered_ends_with_it(site, monkeypatch):
    job_id = site.submit(prompts(3))
    killed_after_entering(site, monkeypatch, job_id)
    assert lose(site, job_id).attempt == 2
    record = site.run_here(job_id)
    assert (record.status, record.attempt, drafts(site)) == (JobStatus.SUCCEEDED, 2, [job_id])
    assert draft_of(site, record).root == site.manifest(record, Stage.PUBLISH).root


@pytest.mark.parametrize("when", ["while nobody has noticed", "in line", "paused in line", "as it goes on"])
def test_a_job_that_is_cancelled_after_such_a_kill_leaves_no_draft(site, monkeypatch, when):
    job_id = site.submit(prompts(3))
    killed_after_entering(site, monkeypatch, job_id)
    if when == "while nobody has noticed":
        ask(site, job_id, UserAction.CANCEL)
        lose(site, job_id)
    elif when == "as it goes on":
        lose(site, job_id)
        before_entering(monkeypatch, lambda: ask(site, job_id, UserAction.CANCEL))
        site.run_here(job_id)
    else:
        lose(site, job_id)
        if when == "paused in line":
            ask(site, job_id, UserAction.PAUSE)
        ask(site, job_id, UserAction.CANCEL)
    record = site.jobs.get(job_id)
    assert (record.status, record.draft, drafts(site)) == (JobStatus.CANCELLED, None, [])


def test_an_equal_job_makes_the_draft_of_one_that_was_killed_its_own(site, monkeypatch):
    job_id = site.submit(prompts(3))
    killed_after_entering(site, monkeypatch, job_id)
    equal = site.run_here(site.submit(prompts(3)))
    assert drafts(site) == [equal.id]
    ask(site, job_id, UserAction.CANCEL)
    assert (lose(site, job_id).status, drafts(site)) == (JobStatus.CANCELLED, [equal.id])


def test_a_run_that_thaws_when_its_job_was_cancelled_leaves_no_draft(site, monkeypatch):
    job_id = site.submit(prompts(3))

    def freeze() -> None:
        ask(site, job_id, UserAction.CANCEL)
        site.jobs.release_run(job_id, site.jobs.owner(job_id))
        assert lose(site, job_id).status == JobStatus.CANCELLED

    before_entering(monkeypatch, freeze)
    assert (site.run_here(job_id).status, drafts(site)) == (JobStatus.CANCELLED, [])
