"""vocab: counted on the rows that the job captured, or a user's own vocabulary checked against them."""

import json

import numpy as np
import pytest

from services.worker.data import verifier_failures
from services.worker.stages import capture, generate, prepare, vocab
from shared.errors import UserError
from shared.schemas.accounting import Accounting
from tests.support.stage_runs import CONTROL_TOKENS, VOCAB, StageRunner, job_spec, prompts, write_rows, write_verifier
from tests.support.verifier_stub import VerifierStub
from tests.support.vocabularies import arrays, bad_npy, npy, pt, write_vocabulary

pytestmark = pytest.mark.data
GIVEN = "ds_" + "1" * 20


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Folders and digests of the stages before, made once."""
    root = tmp_path_factory.mktemp("captured")
    patch = pytest.MonkeyPatch()
    patch.setattr(verifier_failures, "FIRST_BACKOFF_S", 0.001)
    dataset = write_rows(root / "data.jsonl", prompts(12))
    with VerifierStub(root / "runs" / "exchange") as stub:
        runner = StageRunner(root / "runs", job_spec(write_verifier(root / "verifier")), dataset, stub.url)
        for stage in (prepare, generate, capture):
            runner.run(stage)
    patch.undo()
    return runner


@pytest.fixture
def runner(captured, tmp_path):
    """A runner that goes on from there: `runner(vocab_size=200, files={...})`."""

    def start(files=None, **draft):
        if files is not None:
            draft["vocabulary"] = GIVEN
        spec = job_spec(captured.root.parent / "verifier", draft=draft)
        made = StageRunner(tmp_path / "runs", spec, captured.inputs["dataset"])
        made.inputs, made.digests = dict(captured.inputs), {**captured.digests, "verifier": "f" * 64}
        if files is not None:
            record = write_vocabulary(tmp_path / GIVEN, files)
            made.inputs["vocabulary"], made.digests["vocabulary"] = tmp_path / GIVEN, record.sha256
        return made

    return start


def saved(runner):
    return tuple(np.load(runner.last.out / f"{name}.npy") for name in ("t2d", "d2t"))


def supervised(runner):
    return np.flatnonzero(np.load(runner.last.out / "token_freq.npy"))


def test_the_report_says_what_was_counted_and_its_books_balance(runner):
    made = runner()
    report = made.run(vocab)
    assert report["counted_on"] == made.digests["capture"]
    assert report["verifier"] == "f" * 64
    assert (report["target_vocab_size"], report["draft_vocab_size"]) == (VOCAB, 128)
    assert Accounting.model_validate(report["accounting"]).taken == 12
    assert json.loads((made.last.out / "report.json").read_text()) == report


@pytest.mark.parametrize("size", [len(CONTROL_TOKENS), 64, 128, VOCAB])
def test_a_vocabulary_of_any_size_holds_every_control_token(runner, size):
    (made := runner(vocab_size=size)).run(vocab)
    t2d, d2t = saved(made)
    assert (t2d.sum(), len(d2t)) == (size, size)
    assert t2d[list(CONTROL_TOKENS)].all()
    assert ((d2t == 0).all(), t2d.all()) == (size == VOCAB, size == VOCAB)
    assert size < 128 or t2d[supervised(made)].all()


def test_one_that_cannot_hold_the_control_tokens_is_refused_with_the_least(runner):
    with pytest.raises(UserError, match="at least 4"):
        runner(vocab_size=3).run(vocab)


def test_equal_rows_give_equal_bytes(runner, captured, tmp_path):
    first, second = runner(), StageRunner(tmp_path / "again", captured.spec, captured.inputs["dataset"])
    second.inputs, second.digests = dict(captured.inputs), dict(first.digests)
    first.run(vocab)
    second.run(vocab)
    assert first.digests["vocab"] == second.digests["vocab"]


def test_a_given_vocabulary_is_taken_as_it_is_and_compared_with_one_of_our_own(runner):
    (own := runner(vocab_size=100)).run(vocab)
    t2d, d2t = saved(own)
    given = runner({"t2d.npy": npy(t2d), "d2t.npy": npy(d2t)}, vocab_size=100)
    report = given.run(vocab)
    assert np.array_equal(saved(given)[0], t2d)
    assert np.array_equal(saved(given)[1], d2t)
    assert report["given"] == given.digests["vocabulary"]
    assert (report["coverage_train"], report["coverage_val"]) == (
        report["own_coverage_train"],
        report["own_coverage_val"],
    )
    assert report["counted_on"] == given.digests["capture"]
    assert given.events == []


def test_one_that_covers_much_less_than_our_own_is_taken_with_a_warning(runner):
    t2d, d2t = arrays()
    given = runner({"t2d.npy": npy(t2d), "d2t.npy": npy(d2t)}, vocab_size=54)
    report = given.run(vocab)
    assert report["coverage_train"] < report["own_coverage_train"]
    assert [event["type"] for event in given.events] == ["warning"]
    assert GIVEN in given.events[0]["message"]


def test_a_size_that_is_not_the_files_is_refused_with_the_right_one(runner):
    t2d, d2t = arrays()
    with pytest.raises(UserError, match=r"has 54 tokens, the job asks for 128 .*give 54") as caught:
        runner({"t2d.npy": npy(t2d), "d2t.npy": npy(d2t)}, vocab_size=128).run(vocab)
    assert caught.value.where == "/draft/vocab_size"


def test_a_bad_file_is_refused_by_name(runner):
    t2d, _, _ = bad_npy()["ids instead of offsets"]
    with pytest.raises(UserError) as caught:
        runner({"t2d.npy": t2d, "d2t.pt": pt({"d2t": [1, 2]})}, vocab_size=54).run(vocab)
    assert caught.value.where == "d2t.pt"
