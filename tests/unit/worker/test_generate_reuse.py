"""Nothing is generated twice, nothing is missing, and nothing waits for a shard that is not done."""

import json
import random

import pytest

from services.worker.data import verifier_client
from services.worker.data.rows import read_shards
from services.worker.stages import generate, prepare
from shared.artifact_store import file_sha256
from shared.errors import VerifierError
from tests.support.stage_runs import StageRunner, job_spec, prompts, read_jsonl, write_rows, write_verifier
from tests.support.verifier_stub import Script

pytestmark = pytest.mark.data


@pytest.fixture
def prepared(tmp_path, stub):
    verifier = write_verifier(tmp_path / "verifier")

    def start(rows, **data):
        dataset = write_rows(tmp_path / "data.jsonl", rows)
        runner = StageRunner(tmp_path / "runs", job_spec(verifier, data=data), dataset, stub.url)
        runner.run(prepare)
        return runner

    return start


def rows_of(runner):
    return [row for row, _ in read_shards(runner.last.out)]


@pytest.mark.parametrize("deduplicate", [True, False])
@pytest.mark.parametrize("finished", [True, False])
def test_a_larger_limit_on_a_shuffled_file_makes_only_what_is_new(prepared, stub, deduplicate, finished):
    rows = [*prompts(9), prompts(1)[0]]
    first = prepared(rows, limit=5, deduplicate=deduplicate)
    first.run(generate)
    known = {row.id: row for row in rows_of(first)}
    shuffled = random.Random(1).sample(rows, len(rows))
    second = prepared(shuffled, limit=10, deduplicate=deduplicate)
    summary = second.run(generate, siblings=(first.last.out if finished else first.last.work,))
    made = rows_of(second)
    wanted = 9 if deduplicate else 10
    assert (summary["rows"], summary["taken_over"]) == (wanted, 5)
    assert len(stub.chats()) == len({row.id for row in made}) == wanted
    place = {row["prompt"]: number for number, row in enumerate(shuffled, 1)}
    for row in made:
        assert row.has_states
        if row.id in known:
            assert row.input_ids == known[row.id].input_ids
        elif deduplicate:
            assert row.line in place.values()
    prepared_now = {c["id"]: c for c in read_jsonl(second.inputs["prepare"] / "conversations.jsonl")}
    for row in made:
        now = prepared_now[row.conversation]
        assert (row.line, row.split, row.source) == (now["line"], now["split"], now["source"])


def test_turns_that_another_run_had_before_it_broke_off_are_not_written_again(prepared, stub):
    turns = [message for n in range(3) for message in (user(f"q-{n}"), {"role": "assistant", "content": "old"})]
    rows = [{"messages": turns}, *prompts(5)]
    stub.plan("q-2", Script(status=503))
    first = prepared(rows)
    first.run(generate)
    for path in (first.last.work / "rows").glob("*.2.json"):
        path.unlink()
    asked = len(stub.chats())
    summary = prepared(rows).run(generate, previous=(first.last.work,))
    assert (summary["rows"], summary["taken_over"]) == (8, 7)
    assert len(stub.chats()) - asked == 1


def user(text):
    return {"role": "user", "content": text}


def test_rows_1_to_10_are_kept_when_the_verifier_goes_away(prepared, stub, monkeypatch):
    monkeypatch.setattr(verifier_client, "BREAKER_FAILURES", 3)
    stub.gone_after = 10
    runner = prepared(prompts(20), concurrency=1)
    with pytest.raises(VerifierError, match="3 requests in a row"):
        runner.run(generate)
    work = runner.last.work
    assert len(list((work / "rows").glob("*.json"))) == 10
    stub.gone, stub.gone_after = False, None
    summary = runner.run(generate, previous=(work,))
    assert (summary["rows"], summary["taken_over"]) == (20, 10)


def test_later_conversations_do_not_wait_for_a_shard_that_is_not_done(prepared, stub):
    stub.plan("prompt-0", Script(delay_s=1.5))
    runner = prepared(prompts(12), shard_rows=2, concurrency=2)
    runner.run(generate)
    assert stub.answered[-1].prompt.endswith("prompt-0")
    names = [path.name for path in runner.last.out.glob("rows_*")]
    assert sorted(names, key=lambda name: int(name[5:].split("-")[0]))[:2] == ["rows_0-2", "rows_2-4"]
    assert [row.line for row in rows_of(runner)] == list(range(1, 13))


def test_every_file_of_a_shard_is_in_its_manifest_by_its_checksum(prepared):
    runner = prepared(prompts(5), shard_rows=3)
    runner.run(generate)
    for shard in runner.last.out.glob("rows_*"):
        manifest = json.loads((shard / "manifest.json").read_text())
        files = {path.name: file_sha256(path) for path in shard.iterdir() if path.name != "manifest.json"}
        assert manifest["sha256"] == files
        assert sum(name.endswith(".safetensors") for name in files) == manifest["rows"]


def test_ids_whose_text_reads_otherwise_are_stored_as_the_verifier_returned_them(prepared, stub):
    ids = (77, 500, 77, 78)
    stub.plan("prompt-1", Script(token_ids=ids, content="caf\u00e9 \U0001f469\u200d\U0001f467 ", reasoning=None))
    runner = prepared(prompts(5))
    runner.run(generate)
    row = next(row for row in rows_of(runner) if row.line == 2)
    assert (*row.input_ids[row.loss_mask.index(1) :], row.last_id) == ids


def test_rows_of_token_ids_need_no_verifier(prepared, stub):
    rows = [{"input_ids": [1, 2, 3, 4, n + 10, 6], "loss_mask": [0, 1, 0, 1, 1, 0]} for n in range(9)]
    runner = prepared(rows, generate=False, shard_rows=4)
    runner.endpoint = None
    summary = runner.run(generate)
    assert (summary["rows"], summary["with_states"], summary["finish_reasons"]) == (9, 0, {"dataset": 9})
    assert stub.seen == []
    assert list((runner.last.work / "rows").iterdir()) == []
    for row in rows_of(runner):
        assert (row.loss_mask, row.last_id, row.supervised) == ([0, 1, 0, 1, 1, 0], None, 3)
