"""States of other runs: what cannot be used of them is passed over."""

import json
from pathlib import Path

import pytest

from services.worker.data.earlier_rows import EarlierRows
from services.worker.data.earlier_states import EarlierStates


@pytest.mark.parametrize("index", [b'{"row_id": "c.0", "ind', b"\xff\xfe\n", b"[]\n", b"{}\n", b"1\n", None])
def test_a_damaged_index_of_another_run_is_passed_over(tmp_path: Path, index: bytes | None) -> None:
    damaged, whole = tmp_path / "damaged" / "dataset", tmp_path / "whole" / "dataset"
    damaged.mkdir(parents=True)
    whole.mkdir(parents=True)
    if index is not None:
        (damaged / "rows.jsonl").write_bytes(index)
    (whole / "rows.jsonl").write_text(json.dumps({"row_id": "c.0", "index": 3}) + "\n")
    states = EarlierStates([damaged.parent, whole.parent])
    assert list(states.find("c.0")) == [whole / "hidden_states" / "hs_3.safetensors"]


def test_a_shard_of_another_run_with_bytes_that_are_no_text_is_passed_over(tmp_path: Path) -> None:
    shard = tmp_path / "out" / "rows_0-1"
    shard.mkdir(parents=True)
    (shard / "rows.jsonl").write_bytes(b'{"id":"c\xff.0","turn":0}\n')
    EarlierRows([tmp_path / "out"])
