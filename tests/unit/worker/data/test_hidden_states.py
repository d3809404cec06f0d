"""Hidden-state files and the folder they come through: whole, the row's own, finite, and none left behind."""

import errno
import fcntl
import os
import threading
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.worker.data import exchange
from services.worker.data.exchange import (
    BadStates,
    drop,
    request_tag,
    sweep_attempt,
    sweep_dead_runs,
    take_states,
    wait_for_writer,
)
from services.worker.data.hidden_states import check_states, settle_states, stored_dtype
from services.worker.data.storage_forms import FORMS
from shared.errors import ArtifactStoreError, UserError
from shared.ids import new_id
from shared.schemas.spec import CaptureSpec
from shared.verifier_settings import capture_note_name

pytestmark = pytest.mark.data
IDS = [5, 6, 7]
SLOTS, HIDDEN = 4, 8


def good_states():
    return torch.arange(1, 1 + len(IDS) * SLOTS * HIDDEN, dtype=torch.float32).reshape(len(IDS), SLOTS, HIDDEN)


def write(path, states=None, ids=IDS):
    save_file({"hidden_states": good_states() if states is None else states, "token_ids": torch.tensor(ids)}, path)
    return path


def changed(change):
    states = good_states()
    change(states)
    return states


def test_good_states_pass_and_name_their_dtype(tmp_path):
    assert check_states(write(tmp_path / "a"), IDS, SLOTS, HIDDEN) == "float32"
    assert check_states(write(tmp_path / "b", good_states().bfloat16()), IDS, SLOTS, HIDDEN) == "bfloat16"


@pytest.mark.parametrize(
    ("states", "ids", "message"),
    [
        (changed(lambda s: s[1, 2].__setitem__(3, float("nan"))), IDS, "NaN or infinite"),
        (changed(lambda s: s[1, 2].__setitem__(3, float("inf"))), IDS, "NaN or infinite"),
        (torch.zeros(3, SLOTS, HIDDEN), IDS, "all zero"),
        (changed(lambda s: s[:, 1].zero_()), IDS, "all zero in a layer"),
        (good_states()[:2].contiguous(), IDS[:2], "other token ids"),
        (good_states(), [5, 6, 8], "other token ids"),
        (good_states()[:, :3].contiguous(), IDS, "shape"),
        (good_states()[:, :, :4].contiguous(), IDS, "shape"),
    ],
    ids=["nan", "inf", "zeros", "a layer of zeros", "too short", "others' ids", "too few layers", "too narrow"],
)
def test_bad_states_are_refused_with_the_reason(tmp_path, states, ids, message):
    path = write(tmp_path / "x", states, ids)
    with pytest.raises(BadStates, match=message):
        check_states(path, IDS, SLOTS, HIDDEN)


def test_a_file_that_is_cut_or_holds_other_tensors_is_refused(tmp_path):
    path = write(tmp_path / "cut")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BadStates, match="unreadable"):
        check_states(path, IDS, SLOTS, HIDDEN)
    save_file({"states": good_states()}, tmp_path / "other")
    with pytest.raises(BadStates, match="instead of hidden_states"):
        check_states(tmp_path / "other", IDS, SLOTS, HIDDEN)


def settle(path, ids=IDS, form="auto"):
    return settle_states(path, ids, SLOTS, HIDDEN, form)


def test_states_are_clipped_and_converted_without_touching_a_linked_file(tmp_path):
    original = write(tmp_path / "original")
    os.link(original, tmp_path / "linked")
    assert settle(tmp_path / "linked", IDS[:2], "bfloat16") == stored_dtype(tmp_path / "linked") == "bfloat16"
    assert load_file(tmp_path / "linked")["hidden_states"].dtype == torch.bfloat16
    assert load_file(tmp_path / "linked")["token_ids"].tolist() == IDS[:2]
    assert load_file(original)["hidden_states"].shape[0] == len(IDS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_states_keep_the_verifiers_dtype_and_a_file_that_fits_is_left_alone(tmp_path, dtype):
    path = write(tmp_path / "states", good_states().to(dtype))
    before = path.stat().st_ino
    assert settle(path) == stored_dtype(path) == str(dtype).removeprefix("torch.")
    assert path.stat().st_ino == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_states_of_a_dtype_that_no_verifier_computes_in_are_refused(tmp_path, dtype):
    with pytest.raises(BadStates, match="which no verifier computes in"):
        settle(write(tmp_path / "states", good_states().to(dtype)))


def test_states_may_be_held_to_a_dtype(tmp_path):
    path = write(tmp_path / "states", good_states().half())
    assert check_states(path, IDS, SLOTS, HIDDEN, "float16") == "float16"
    with pytest.raises(BadStates, match="dtype float16, expected bfloat16"):
        check_states(path, IDS, SLOTS, HIDDEN, "bfloat16")


def test_every_storage_form_that_a_job_can_ask_for_exists():
    asked = get_args(CaptureSpec.model_fields["dtype"].annotation)
    assert set(FORMS) == set(asked)


class SlowWriter(threading.Thread):
    """Holds the lock, and writes the file only when told to."""

    def __init__(self, path, leaves_file=True):
        super().__init__(daemon=True)
        self.path, self.leaves_file, self.go = path, leaves_file, threading.Event()
        self.lock = os.open(f"{path}.lock", os.O_CREAT | os.O_WRONLY, 0o644)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.start()

    def run(self):
        self.go.wait(10)
        if self.leaves_file:
            write(self.path)
        os.close(self.lock)


def test_a_reader_that_comes_early_gets_the_complete_file(tmp_path):
    writer = SlowWriter(tmp_path / "states")
    threading.Timer(0.1, writer.go.set).start()
    take_states(tmp_path / "states", tmp_path / "taken")
    assert check_states(tmp_path / "taken", IDS, SLOTS, HIDDEN) == "float32"
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("locked", [True, False])
def test_a_file_that_never_comes_is_named_and_its_lock_removed(tmp_path, locked):
    if locked:
        SlowWriter(tmp_path / "states", leaves_file=False).go.set()
    with pytest.raises(BadStates, match="left no file states"):
        take_states(tmp_path / "states", tmp_path / "taken")
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_hangs_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    writer = SlowWriter(tmp_path / "states")
    monkeypatch.setattr(exchange, "wait_for_writer", lambda source: wait_for_writer(source, 0.05))
    with pytest.raises(BadStates, match=r"not written within 0\.05 s"):
        take_states(tmp_path / "states", tmp_path / "taken")
    writer.go.set()


def test_an_unwanted_file_is_removed_after_it_was_written(tmp_path):
    writer = SlowWriter(tmp_path / "states")
    threading.Timer(0.1, writer.go.set).start()
    drop(tmp_path / "states")
    writer.join(10)
    assert list(tmp_path.iterdir()) == []


def leave(exchange, job_id, token):
    path = exchange / f"chatcmpl-{request_tag(job_id, token)}-row.0-ab12.safetensors"
    for left in (path, path.with_name(f"{path.name}.lock")):
        left.write_bytes(b"")
    return path


def test_a_sweep_removes_one_attempts_files_and_no_others(tmp_path):
    job, mine, other = new_id("job"), new_id("run"), new_id("run")
    leave(tmp_path, job, mine)
    kept = leave(tmp_path, job, other)
    assert sweep_attempt(tmp_path, request_tag(job, mine)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [kept.name, f"{kept.name}.lock"]


def test_files_of_dead_runs_are_swept_and_those_of_live_ones_kept(tmp_path):
    dead_job, live_job = new_id("job"), new_id("job")
    before, now = new_id("run"), new_id("run")
    for job, token in ((dead_job, before), (live_job, before)):
        leave(tmp_path, job, token)
    kept = leave(tmp_path, live_job, now)
    (tmp_path / "not-ours.safetensors").write_bytes(b"")
    assert sweep_dead_runs(tmp_path, {live_job: now}.get) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [kept.name, f"{kept.name}.lock", "not-ours.safetensors"]
    )


def test_sweeping_a_folder_that_does_not_exist_does_nothing(tmp_path):
    assert sweep_attempt(tmp_path / "absent", "tag") == 0


def test_a_verifier_that_captures_other_layers_is_refused_before_anything_is_asked(tmp_path):
    note = tmp_path / capture_note_name("org/model")
    note.write_text('{"layer_ids": [1, 2, 3, 4]}', encoding="utf-8")
    exchange.require_layers(tmp_path, "org/model", [1, 2, 3, 4])
    with pytest.raises(UserError, match=r"captures layers \[1, 2, 3, 4\], the job wants \[2, 4\]") as refused:
        exchange.require_layers(tmp_path, "org/model", [2, 4])
    assert "EYRIE_VERIFIER_LAYER_IDS" in refused.value.hint
    exchange.require_layers(tmp_path, "silent", [2, 4])


def test_a_new_exchange_folder_is_made(tmp_path):
    exchange.require_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_an_exchange_folder_that_cannot_be_made_fails_with_the_reason(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactStoreError, match="cannot be written: Not a directory") as refused:
        exchange.require_writable(tmp_path / "file" / "exchange")
    assert "EYRIE_EXCHANGE_ROOT" in refused.value.hint


def test_a_read_only_exchange_folder_fails_with_the_reason(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(type(tmp_path), "touch", refuse)  # root may write what is read-only
    with pytest.raises(ArtifactStoreError, match="Read-only file system") as refused:
        exchange.require_writable(tmp_path)
    assert refused.value.where == str(tmp_path)
