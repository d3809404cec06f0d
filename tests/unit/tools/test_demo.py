"""The demo's report: figures are cut, never rounded up, and bad prompts end it before anything starts."""

import json
from pathlib import Path

import pytest

from tools import demo

POSITIONS = [0.9, 0.8, 0.7]


def figures(length: float) -> dict[str, object]:
    return {"acceptance_length": length, "per_position": POSITIONS, "prompts": 30, "mode": "vllm"}


def finished_job() -> dict[str, object]:
    summaries: dict[str, dict[str, object]] = {
        "capture": {"num_train": 270, "num_val": 30, "supervised_train_tokens": 15000},
        "vocab": {"coverage_val": 0.99},
        "train": {"steps": 10},
        "evaluate": {
            "num_speculative_tokens": 3,
            "suites": {"heldout": {"trained": figures(3.4), "untrained": figures(1.0)}},
        },
    }
    names = ("prepare", "generate", "capture", "vocab", "train", "evaluate", "publish")
    stages = [{"name": name, "seconds": 1.5, "summary": summaries.get(name, {})} for name in names]
    return {"id": "job_1", "draft": "draft_1", "stages": stages}


def test_the_report_has_the_promised_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "serve_command", lambda folder, k: f"serve {folder} {k}")
    report = demo.make_report(finished_job(), tmp_path, 300.5)
    assert report["acceptance_length"] == {"trained": 3.4, "untrained": 1.0}
    assert report["per_position"]["trained"] == POSITIONS
    assert list(report["stages"]) == ["prepare", "generate", "capture", "vocab", "train", "evaluate", "publish"]
    assert report["tokens_trained_on"] == 15000
    assert report["draft_path"] == str(tmp_path)
    assert report["wall_seconds"] == 300.5


@pytest.mark.data
def test_the_latest_report_is_found_in_one_place_and_earlier_ones_stay(tmp_path: Path) -> None:
    latest = tmp_path / "report.json"
    latest.write_text("of an older version")
    for number in (1, 2):
        folder = tmp_path / "runs" / f"run-{number}"
        folder.mkdir(parents=True)
        assert demo.write_report({"number": number}, folder, latest) == latest
        assert json.loads(latest.read_text()) == {"number": number}
    assert json.loads((tmp_path / "runs" / "run-1" / "report.json").read_text()) == {"number": 1}
    assert (tmp_path / "report-before-run-1.json").read_text() == "of an older version"


@pytest.mark.parametrize(("value", "shown"), [(2.7999, "2.799"), (3.0, "3.000"), (None, "none")])
def test_figures_are_never_rounded_up(value: float | None, shown: str) -> None:
    assert demo.cut(value) == shown


def test_a_missing_prompts_file_ends_the_demo_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "DEMO_FOLDER", tmp_path / "demo")
    assert demo.main(["--prompts", str(tmp_path / "gone.jsonl")]) == 2
    assert "gone.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
