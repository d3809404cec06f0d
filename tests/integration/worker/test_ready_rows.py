"""A job of ready-made rows on a real worker: no verifier is asked, and all that was sent stands in its lineage."""

import pytest

from shared.ids import new_id
from shared.schemas.job import JobStatus, Stage
from tests.support.ready_folders import enter_folder, make_rows, write_folder
from tests.support.stage_runs import job_spec
from tests.support.vocabularies import arrays, npy, write_vocabulary
from tests.support.worker_site import DATA, assert_whole

pytestmark = pytest.mark.data


def test_rows_with_states_need_no_verifier_and_everything_sent_is_in_the_lineage(site):
    site.start_worker(DATA)
    rows, given = new_id("ds"), new_id("ds")
    enter_folder(site.store.root / "datasets" / rows, write_folder(site.folder / "rows", make_rows(12)))
    t2d, d2t = arrays()
    record = write_vocabulary(site.store.root / "datasets" / given, {"t2d.npy": npy(t2d), "d2t.npy": npy(d2t)})
    draft = {"vocabulary": given, "vocab_size": 54}
    spec = job_spec(site.verifier, data={"dataset": rows, "generate": False}, draft=draft)
    assert spec.verifier.endpoint is None
    job = site.jobs.create(spec)
    site.queue.enqueue(job.id, job.attempt)
    done = site.wait_for(job.id, JobStatus.SUCCEEDED)
    assert_whole(site, done)
    assert site.stub.seen == []
    manifests = {stage: site.manifest(done, stage) for stage in (Stage.PREPARE, Stage.GENERATE, Stage.VOCAB)}
    assert manifests[Stage.VOCAB].inputs["vocabulary"] == record.sha256
    assert manifests[Stage.VOCAB].summary["counted_on"] == site.manifest(done, Stage.CAPTURE).digest()
    assert manifests[Stage.GENERATE].inputs["dataset"] == manifests[Stage.PREPARE].inputs["dataset"]
    assert done.stage(Stage.CAPTURE).summary["inline"] == 12
