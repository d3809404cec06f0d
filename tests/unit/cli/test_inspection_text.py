"""An inspection on paper and on a terminal: what is learnt can be told without colour, at 80 columns, and safely."""

import io
from typing import Any

import pytest
from rich.console import Console

from services.cli.inspection_text import BAR, inspection_text

pytestmark = pytest.mark.data


def inspection(**changes: Any) -> dict[str, Any]:
    segments = [
        {"text": "question ", "token_ids": [1, 2], "supervised": False},
        {"text": "answer", "token_ids": [3], "supervised": True},
    ]
    turn = {"turn": 0, "tokens": 2, "supervised_tokens": 1, "clipped": False, "segments": segments}
    found = {
        "dataset": "ds_x",
        "kind": "conversations",
        "vocabulary": None,
        "rows": 12,
        "kept": 9,
        "train": 8,
        "val": 1,
        "problem": None,
        "sources": [{"name": "data", "rows": 12, "kept": 9}],
        "mended": {"user_turns_joined": 2},
        "rejected": [
            {"reason": "bad_turn", "rows": 3, "first": [{"source": "data", "line": 4, "message": "turn 1 is bad " * 9}]}
        ],
        "refused": [],
        "tokens": {
            "unit": "rows",
            "conversations": 9,
            "complete": True,
            "measured": 9,
            "min": 2,
            "median": 3,
            "p95": 90,
            "max": 99,
            "total": 200,
            "supervised": 50,
            "max_seq_len": 64,
            "over_max_seq_len": 2,
            "clipped": 1,
            "histogram": [{"low": 0, "high": 9, "count": 8}, {"low": 10, "high": 19, "count": 1}],
        },
        "samples": [{"id": "a", "source": "data", "line": 7, "turns": [turn]}],
        "why_not_rendered": None,
        "warnings": [],
    }
    return found | changes


def shown(found: dict[str, Any], *, terminal: bool = False) -> str:
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=terminal, color_system="standard" if terminal else None).print(
        inspection_text(found)
    )
    return file.getvalue()


def test_everything_is_there_within_80_columns() -> None:
    text = shown(inspection())
    assert max(map(len, text.splitlines())) <= 80
    for part in (
        "kept       9  8 to train on, 1 held out",
        "user_turns_joined",
        "3  bad_turn",
        "line 4: turn 1 is bad",
    ):
        assert part in text
    assert "2 longer than data.max_seq_len 64: 1 clipped, 1 refused" in text
    assert "200 tokens in all, 50 of them learnt" in text
    bars = [line.count("█") for line in text.splitlines() if "█" in line]
    assert bars == [BAR, BAR // 8]


def test_what_is_learnt_is_marked_with_and_without_colour() -> None:
    assert "question «answer»" in shown(inspection())
    assert "\x1b[1;32m«answer»" in shown(inspection(), terminal=True)


def test_the_place_of_the_verifiers_answer_and_bare_ids_are_shown() -> None:
    found = inspection()
    turn = found["samples"][0]["turns"][0]
    turn["segments"] = [
        {"text": None, "token_ids": [7, 8], "supervised": False},
        {"text": "", "token_ids": [], "supervised": True},
    ]
    assert "7 8 «the verifier writes here»" in shown(found)


def test_data_cannot_command_the_terminal() -> None:
    found = inspection()
    found["samples"][0]["turns"][0]["segments"][0]["text"] = "\x1b[2Jgone\x07 \x9b1m [bold]kept[/bold]\r"
    found["rejected"][0]["first"][0]["message"] = "\x1b]0;title\x07"
    text = shown(found)
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(text)
    assert "[bold]kept[/bold]" in text


def test_long_texts_are_cut_in_the_middle() -> None:
    found = inspection()
    found["samples"][0]["turns"][0]["segments"][0]["text"] = "begin " + "x" * 5000 + " end"
    text = shown(found)
    assert len(text) < 3000
    assert "begin" in text
    assert "characters ...]" in text
    assert " end«answer»" in text


def test_missing_parts_and_problems_are_said() -> None:
    found = inspection(tokens=None, samples=None, why_not_rendered="no verifier", warnings=["mind"], problem="too few")
    text = shown(found)
    assert "Not all was rendered: no verifier" in text
    assert "Note: mind" in text
    assert "No job could use it: too few" in text
