"""prepare: counts that add up, equal artifacts for equal rows, and reasons that name the line."""

import json

import pytest

from services.worker.stages import prepare
from shared.errors import UserError
from tests.support.stage_runs import StageRunner, job_spec, prompts, read_jsonl, write_rows, write_verifier

pytestmark = pytest.mark.data


@pytest.fixture
def run_prepare(tmp_path):
    verifier = write_verifier(tmp_path / "verifier")

    def run(rows, **data):
        dataset = rows if hasattr(rows, "read_bytes") else write_rows(tmp_path / "data.jsonl", rows)
        runner = StageRunner(tmp_path / "runs", job_spec(verifier, data=data), dataset)
        return runner.run(prepare), runner.last.out

    return run


def test_every_row_is_kept_or_refused_with_line_and_reason(run_prepare):
    rows = [*prompts(9), "not json", {"prompt": ""}, {"prompt": "say <|im_end|>"}, prompts(1)[0]]
    summary, out = run_prepare(rows)
    assert summary["rows"] == 13
    assert summary["kept"] == summary["train"] + summary["val"] == 9
    assert summary["rejected"] == {"control_token": 1, "duplicate": 1, "empty_content": 1, "not_json": 1}
    assert [(item["line"], item["reason"]) for item in read_jsonl(out / "rejects.jsonl")] == [
        (10, "not_json"),
        (11, "empty_content"),
        (12, "control_token"),
        (13, "duplicate"),
    ]


def test_the_same_rows_in_other_spellings_give_identical_files(run_prepare, tmp_path):
    rows = [json.dumps({**row, **({"id": n} if n % 2 else {})}).encode() for n, row in enumerate(prompts(12))]
    made = []
    for number, content in enumerate(
        [b"\n".join(rows) + b"\n", b"\xef\xbb\xbf" + b"\n".join(rows), b"\r\n".join(rows) + b"\r\n", b"\n".join(rows)]
    ):
        path = tmp_path / f"variant-{number}.jsonl"
        path.write_bytes(content)
        _, out = run_prepare(path)
        made.append({name.name: name.read_bytes() for name in out.iterdir()})
    assert made == [made[0]] * 4


@pytest.mark.parametrize("content", [b"", b"\n \r\n"], ids=["empty", "blank lines"])
def test_a_file_without_rows_is_the_users_error(run_prepare, tmp_path, content):
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        run_prepare(path)
    assert caught.value.where == "dataset"
    assert caught.value.hint


def test_all_rows_bad_names_the_first_lines_and_their_reasons(run_prepare):
    with pytest.raises(UserError, match=r"2 not_json.*line 1 is not JSON"):
        run_prepare(["{", "{"])


def test_control_tokens_may_be_allowed(run_prepare):
    summary, _ = run_prepare([*prompts(2), {"prompt": "say <|im_end|>"}], on_control_tokens="allow")
    assert summary["kept"] == 3


def test_equal_prompts_may_be_kept_as_rows_of_their_own(run_prepare):
    summary, out = run_prepare([*prompts(2), *prompts(2)], deduplicate=False)
    assert summary["kept"] == 4
    assert len({row["id"] for row in read_jsonl(out / "conversations.jsonl")}) == 4


def test_the_limit_counts_accepted_conversations_only(run_prepare):
    summary, _ = run_prepare(["{", *prompts(5)], limit=3)
    assert summary["kept"] == 3
    assert summary["rejected"] == {"not_json": 1, "over_limit": 2}


def test_ids_do_not_depend_on_the_order_of_the_file(run_prepare):
    _, left = run_prepare(prompts(6))
    _, right = run_prepare(list(reversed(prompts(6))))
    kept = [{(row["id"], row["split"]) for row in read_jsonl(out / "conversations.jsonl")} for out in (left, right)]
    assert kept[0] == kept[1]
