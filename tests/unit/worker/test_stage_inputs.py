"""What a job's stages will read is looked at before the first of them runs, not when its turn comes hours later."""

from pathlib import Path

import pytest

from services.worker.stage_inputs import StageInputs
from shared.artifact_store import LocalArtifactStore
from shared.errors import UserError
from shared.schemas.job import now
from shared.schemas.registry import DraftRecord
from tests.support.stage_runs import job_spec, prompts, write_dataset, write_rows, write_verifier


@pytest.mark.parametrize("manifest", [None, b'\xff\xfe{"stage": "cut o'], ids=["absent", "garbage"])
def test_a_draft_to_compare_with_whose_manifest_is_lost_is_refused_at_once(
    tmp_path: Path, manifest: bytes | None
) -> None:
    store = LocalArtifactStore(tmp_path / "store")
    write_dataset(store.folder("datasets/ds_1"), write_rows(tmp_path / "rows.jsonl", prompts(4)))
    key = "stages/publish/k/manifest.json"
    draft = DraftRecord(
        id="draft_1",
        job_id="job_1",
        verifier="v",
        algorithm="eagle3",
        root="stages/publish/k/attempts/t/out",
        manifest=key,
        digest="d",
        bytes=7,
        evaluation={},
        gate="none",
        created_at=now(),
    )
    store.write("drafts/draft_1.json", draft.model_dump_json().encode())
    if manifest is not None:
        store.write(key, manifest)
    verifier = write_verifier(tmp_path / "tiny-verifier")
    spec = job_spec(verifier, data={"dataset": "ds_1"}, evaluate={"compare_to": "draft_1"})
    with pytest.raises(UserError, match="draft_1 are gone") as refused:
        StageInputs(spec, store)
    assert refused.value.where == "/evaluate/compare_to"
