"""A dry run tells what the stages do: the same rejects as prepare, the same ids and masks as generate."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.gateway.inspection.documents import Inspection, InspectionBody, TurnView
from services.gateway.inspection.dry_run import DryRun
from services.gateway.inspection.request import complete_request
from services.worker.stages import generate, prepare
from tests.support.ready_folders import enter_folder, make_rows, write_folder
from tests.support.stage_runs import (
    StageRunner,
    job_spec,
    prompts,
    read_jsonl,
    write_dataset,
    write_rows,
    write_verifier,
)
from tests.support.verifier_stub import VerifierStub
from tests.support.vocabularies import arrays, npy, write_vocabulary

pytestmark = pytest.mark.data
DATASET = "ds_00000000000000000000"
HOSTILE: list[Any] = [
    {"prompt": "fine"},
    "{broken",
    "[1, 2]",
    {"messages": [{"role": "wizard", "content": "x"}]},
    {"messages": [{"role": "user", "content": 7}]},
    {"prompt": "say <|im_end|> please"},
    {"prompt": "fine"},
    "",
    {
        "messages": [
            {"role": "assistant", "content": "hi"},
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
        ]
    },
    {"conversations": [{"from": "gpt", "value": "only me"}]},
    {"text": "no form"},
    {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
    '{"prompt": "\\ud83d half"}',
    *({"messages": [{"role": "robot", "content": "x"}]} for _ in range(4)),
    *prompts(12),
]
CHATS: list[Any] = [
    {
        "system": "be brief",
        "messages": [
            {"role": "user", "content": f"first question {number}"},
            {"role": "assistant", "content": f"first answer {number}"},
            {"role": "user", "content": f"second question {number}"},
            {"role": "assistant", "content": f"second answer {number}", "reasoning": "we think hard"},
        ],
    }
    for number in range(6)
]
IDS: list[Any] = [{"input_ids": [20, 21, 22, 23 + n], "loss_mask": [0, 0, 1, 1]} for n in range(5)]


def inspection(tmp_path: Path, files: list[Path], stub: VerifierStub | None, **body: Any) -> Inspection:
    verifier = {"model": str(write_verifier(tmp_path / "tiny-verifier"))}
    dataset = write_dataset(tmp_path / DATASET, *files, weights=body.pop("weights", ()))
    body = {"data": {"max_seq_len": 128, "val_ratio": 0.2, **body.pop("data", {})}, "verifier": verifier, **body}
    request = complete_request(DATASET, InspectionBody.model_validate(body), stub.url if stub else None)
    (tmp_path / "work").mkdir()
    return DryRun(request, dataset, tmp_path / "work").inspect()


def supervised_text(turn: TurnView) -> str:
    return " ".join(segment.text or "" for segment in turn.segments if segment.supervised)


def test_rejects_and_counts_are_those_of_the_prepare_stage(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", HOSTILE)
    found = inspection(tmp_path, [file], None)
    runner = StageRunner(tmp_path / "stages", job_spec(tmp_path / "tiny-verifier"), file)
    summary = runner.run(prepare)
    rejects = read_jsonl(runner.last.out / "rejects.jsonl")
    assert {item.reason: item.rows for item in found.rejected} == summary["rejected"]
    for item in found.rejected:
        expected = [reject for reject in rejects if reject["reason"] == item.reason][:3]
        assert [(row.source, row.line, row.message) for row in item.first] == [
            (reject["source"], reject["line"], reject["message"]) for reject in expected
        ]
    assert (found.rows, found.kept, found.train, found.val) == tuple(
        summary[name] for name in ("rows", "kept", "train", "val")
    )
    assert found.mended == summary["mended"]
    assert found.rows == found.kept + sum(item.rows for item in found.rejected)
    assert len(found.rejected) >= 9
    assert [len(item.first) for item in found.rejected if item.reason == "unknown_role"] == [3]


def test_weights_and_limits_choose_as_the_prepare_stage_does(tmp_path: Path) -> None:
    first = write_rows(tmp_path / "first.jsonl", prompts(30))
    second = write_rows(tmp_path / "second.jsonl", [{"prompt": f"other {n}"} for n in range(10)])
    found = inspection(tmp_path, [first, second], None, weights=(1.0, 3.0), data={"limit": 8})
    spec = job_spec(tmp_path / "tiny-verifier", data={"limit": 8})
    summary = StageRunner(tmp_path / "stages", spec, tmp_path / DATASET).run(prepare)
    assert {source.name: source.kept for source in found.sources} == {"first": 2, "second": 6}
    assert {item.reason: item.rows for item in found.rejected} == summary["rejected"]
    assert (found.kept, found.val) == (summary["kept"], summary["val"])


def test_masks_are_those_of_the_generate_stage(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", CHATS)
    with VerifierStub(tmp_path / "exchange") as stub:
        found = inspection(tmp_path, [file], stub, data={"generate": False})
        runner = StageRunner(
            tmp_path / "stages", job_spec(tmp_path / "tiny-verifier", data={"generate": False}), file, stub.url
        )
        runner.exchange = stub.exchange
        runner.run(prepare)
        runner.run(generate)
    made = [row for path in sorted(runner.last.out.glob("rows_*/rows.jsonl")) for row in read_jsonl(path)]
    rows = {(row["conversation"], row["turn"]): row for row in made}
    assert found.samples is not None
    assert found.tokens is not None
    assert len(found.samples) == 3
    for sample in found.samples:
        assert len(sample.turns) == 2
        for turn in sample.turns:
            row = rows[sample.id, turn.turn]
            ids = [token for segment in turn.segments for token in segment.token_ids]
            mask = [int(segment.supervised) for segment in turn.segments for _ in segment.token_ids]
            assert (ids, mask) == ([*row["input_ids"], row["last_id"]], [*row["loss_mask"], 1])
            assert turn.tokens == len(row["input_ids"])
    assert (found.tokens.unit, found.tokens.complete, found.tokens.measured) == ("rows", True, 12)
    assert found.tokens.total == sum(len(row["input_ids"]) for row in made)
    assert found.tokens.supervised == sum(sum(row["loss_mask"]) + 1 for row in made)
    assert supervised_text(found.samples[0].turns[1]).startswith("we think hard </think> second answer")


def test_rows_that_the_generate_stage_refuses_are_named(tmp_path: Path) -> None:
    long = {"messages": [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "yes"}]}
    silent = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": ""}]}
    wordy = {"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "word " * 300}]}
    file = write_rows(tmp_path / "rows.jsonl", [*CHATS, long, silent, wordy])
    with VerifierStub(tmp_path) as stub:
        found = inspection(tmp_path, [file], stub, data={"generate": False})
    assert {item.reason: [row.line for row in item.first] for item in found.refused} == {
        "prompt_too_long": [7],
        "empty_answer": [8],
    }
    assert found.tokens is not None
    assert (found.tokens.over_max_seq_len, found.tokens.clipped) == (2, 1)
    assert found.tokens.max > 300


def test_where_nothing_can_be_shown_that_is_said(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"{n} " * 200} for n in range(3)])
    with VerifierStub(tmp_path) as stub:
        found = inspection(tmp_path, [file], stub)
    assert (found.kept, found.samples) == (3, None)
    assert "refused" in (found.why_not_rendered or "")


def test_where_the_verifier_will_write_its_place_is_shown(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", CHATS)
    with VerifierStub(tmp_path) as stub:
        found = inspection(tmp_path, [file], stub, data={"system_prompt": "ignored here"})
    assert found.samples is not None
    assert found.tokens is not None
    assert found.tokens.unit == "prompts"
    for sample in found.samples:
        for turn in sample.turns:
            *prompt, place = turn.segments
            assert [segment.supervised for segment in prompt] == [False]
            assert (place.text, place.token_ids, place.supervised) == ("", [], True)
            assert (prompt[0].text or "").startswith("<system> be brief")
    assert any("later turns" in warning for warning in found.warnings)


def test_a_sample_says_that_it_is_one(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", prompts(40))
    with VerifierStub(tmp_path) as stub:
        found = inspection(tmp_path, [file], stub, sample=10)
    assert found.tokens is not None
    assert (found.kept, found.tokens.conversations, found.tokens.complete) == (40, 10, False)


def test_token_rows_need_no_verifier(tmp_path: Path) -> None:
    long = {"input_ids": list(range(20, 220)), "loss_mask": [0, 1] * 100}
    file = write_rows(tmp_path / "rows.jsonl", [*IDS, long])
    found = inspection(tmp_path, [file], None, data={"generate": False}, sample=3)
    assert found.tokens is not None
    assert found.samples is not None
    assert (found.tokens.complete, found.tokens.measured, found.tokens.total) == (True, 6, 5 * 4 + 128)
    assert (found.tokens.over_max_seq_len, found.tokens.clipped) == (1, 1)
    assert [segment.text for segment in found.samples[0].turns[0].segments] == [None] * len(
        found.samples[0].turns[0].segments
    )
    assert "EYRIE_VERIFIER_URL" in (found.why_not_rendered or "")


@pytest.mark.parametrize(
    ("served", "says"),
    [(None, "EYRIE_VERIFIER_URL"), ("another-model", "serves another-model"), ("gone", "does not answer")],
)
def test_without_its_verifier_counts_still_come(tmp_path: Path, served: str | None, says: str) -> None:
    file = write_rows(tmp_path / "rows.jsonl", prompts(5))
    with VerifierStub(tmp_path, model=served or "x", gone=served == "gone") as stub:
        found = inspection(tmp_path, [file], stub if served else None)
    assert (found.kept, found.tokens, found.samples) == (5, None, None)
    assert says in (found.why_not_rendered or "")


def test_a_verifier_that_goes_away_leaves_what_was_measured(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", prompts(5))
    with VerifierStub(tmp_path) as stub:
        verifier = {"model": str(write_verifier(tmp_path / "tiny-verifier"))}
        body = InspectionBody.model_validate({"verifier": verifier})
        request = complete_request(DATASET, body, stub.url)
    (tmp_path / "work").mkdir()
    found = DryRun(request, write_dataset(tmp_path / DATASET, file), tmp_path / "work").inspect()
    assert (found.kept, found.tokens, found.provisional) == (5, None, True)
    assert "does not answer" in (found.why_not_rendered or "")


def test_data_that_no_job_could_use_is_said_to_be_so(tmp_path: Path) -> None:
    found = inspection(tmp_path, [write_rows(tmp_path / "rows.jsonl", ["{", {"prompt": "only one"}])], None)
    assert (found.kept, found.val) == (1, 0)
    assert "too few" in (found.problem or "")


def test_what_only_the_verifiers_files_tell_is_warned_of(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", prompts(3))
    request = complete_request(DATASET, InspectionBody.model_validate({"sample": 0}), None)
    (tmp_path / "work").mkdir()
    found = DryRun(request, write_dataset(tmp_path / DATASET, file), tmp_path / "work").inspect()
    assert any("control tokens" in warning for warning in found.warnings)
    assert (found.tokens, found.samples) == (None, None)


def test_a_vocabulary_shows_its_sizes_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    verifier = {"model": str(write_verifier(tmp_path / "tiny-verifier"))}
    request = complete_request(DATASET, InspectionBody.model_validate({"verifier": verifier}), None)
    t2d, d2t = arrays()
    good = {"t2d.npy": npy(t2d), "d2t.npy": npy(d2t)}
    bad = {"t2d.npy": npy(t2d), "d2t.npy": npy(d2t + 1)}
    unread = {"t2d.npy": npy(t2d), "d2t.pt": b"x"}
    found = []
    for number, files in enumerate((good, bad, unread)):
        write_vocabulary(tmp_path / str(number) / DATASET, files)
        found.append(DryRun(request, tmp_path / str(number) / DATASET, tmp_path).inspect())
    sizes = [(view.target_size, view.draft_size) for one in found if (view := one.vocabulary)]
    assert sizes == [(512, 54), (512, 54), (None, None)]
    assert found[0].problem is None
    assert "d2t.npy" in (found[1].problem or "")
    assert found[2].vocabulary is not None
    assert "vocab stage" in (found[2].vocabulary.note or "")


def test_ready_made_rows_show_the_rejects_and_the_split_of_prepare(tmp_path: Path) -> None:
    rows = [*make_rows(10), ([1, 512], [0, 1]), ([1, 2, 3], [0, 1])]
    folder = write_folder(tmp_path / "rows", rows, states=range(4), token_freq=False)
    entries = [{"index": n, "split": "val" if n in (1, 2, 3) else "train", "last_id": 480} for n in range(len(rows))]
    (folder / "rows.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    dataset = enter_folder(tmp_path / DATASET, folder)
    verifier = write_verifier(tmp_path / "tiny-verifier")
    body = {"data": {"generate": False, "max_seq_len": 128}, "verifier": {"model": str(verifier)}}
    request = complete_request(DATASET, InspectionBody.model_validate(body), None)
    (tmp_path / "work").mkdir()
    found = DryRun(request, dataset, tmp_path / "work").inspect()
    assert (found.kind, found.rows, found.kept, found.train, found.val) == ("rows", 12, 10, 7, 3)
    runner = StageRunner(tmp_path / "runs", job_spec(verifier, data={"generate": False}), dataset)
    summary = runner.run(prepare)
    assert {item.reason: item.rows for item in found.rejected} == summary["rejected"]
    assert (summary["train"], summary["val"]) == (found.train, found.val)
    assert found.problem is None
