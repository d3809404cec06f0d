"""What stages read of a job's datasets, and what ready-made rows cost the store."""

from pathlib import Path

import pytest

from shared.data.dataset_record import read_record
from shared.dataset_kinds import new_states_share, reads_dataset, text_bytes
from shared.estimate import estimate_disk, estimate_tokens
from shared.schemas.job import Stage
from shared.schemas.registry import DatasetRecord
from shared.verifier_config import read_verifier_config
from tests.support.ready_folders import enter_folder, make_rows, write_folder
from tests.support.stage_runs import job_spec, prompts, write_dataset, write_rows, write_verifier

pytestmark = pytest.mark.data


def rows(tmp_path: Path, states: int) -> DatasetRecord:
    folder = write_folder(tmp_path / f"rows-{states}", make_rows(10), states=range(states), token_freq=False)
    return read_record(enter_folder(tmp_path / f"ds-{states}", folder))


def test_only_of_ready_made_rows_does_generate_read_the_dataset(tmp_path: Path) -> None:
    chats = read_record(write_dataset(tmp_path / "ds", write_rows(tmp_path / "a.jsonl", prompts(2))))
    read = {stage for stage in Stage if reads_dataset(stage, "dataset", chats)}
    assert read == {Stage.PREPARE}
    ready = rows(tmp_path, 10)
    assert {stage for stage in Stage if reads_dataset(stage, "dataset", ready)} == {Stage.PREPARE, Stage.GENERATE}
    assert {stage for stage in Stage if reads_dataset(stage, "vocabulary", ready)} == {Stage.VOCAB}
    assert {stage for stage in Stage if reads_dataset(stage, "suite:a", chats)} == {Stage.EVALUATE}


@pytest.mark.parametrize(("states", "share"), [(10, 0.0), (7, 0.3), (0, 1.0)])
def test_states_that_rows_bring_take_no_room_again(states: int, share: float, tmp_path: Path) -> None:
    verifier = write_verifier(tmp_path / "verifier")
    spec, record = job_spec(verifier, data={"generate": False}), rows(tmp_path, states)
    assert new_states_share(spec, record) == pytest.approx(share)
    config, tokens = read_verifier_config(verifier), estimate_tokens(spec, record)
    sizes = [estimate_disk(Stage.CAPTURE, spec, config, tokens, 0, part).likely for part in (share, 1.0)]
    assert (sizes[0] < sizes[1]) == (states > 0)


def test_states_that_are_stored_in_another_type_are_written_anew(tmp_path: Path) -> None:
    spec = job_spec(write_verifier(tmp_path / "verifier"), capture={"dtype": "bfloat16"})
    assert new_states_share(spec, rows(tmp_path, 10)) == 1.0


def test_prepare_reads_rows_but_not_their_states(tmp_path: Path) -> None:
    with_states, without = rows(tmp_path, 10), rows(tmp_path, 0)
    assert text_bytes(with_states) == text_bytes(without) == without.bytes
    assert with_states.bytes > 2 * without.bytes
