"""check-api: one line of JSON at the end whatever happens; a part that did not run is never counted as passed."""

import json

import pytest

from tools import check_api


@pytest.fixture
def outcome(monkeypatch, tmp_path, capfd):
    """Run it with parts of our own, by the text of their tests (None: no such file); return exit code and report."""
    monkeypatch.setattr(check_api, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(check_api.shutil, "which", lambda name: f"/usr/bin/{name}")

    def run(**parts: str | None):
        paths = {}
        for name, text in parts.items():
            path = tmp_path / f"test_{name}.py"
            if text is not None:
                path.write_text(f"import pytest\n{text}\n")
            paths[name] = [str(path)]
        monkeypatch.setattr(check_api, "PARTS", paths)
        code = check_api.main(["-p", "no:cacheprovider", "-p", "no:schemathesis"])
        return code, json.loads(capfd.readouterr().out.splitlines()[-1])

    return run


def test_all_well_is_zero_and_counted_by_part(outcome):
    code, report = outcome(sse="def test_a(): pass\ndef test_b(): pytest.skip('x')", page="def test_a(): pass")
    assert (code, report["passed"], report["failed"], report["skipped"]) == (0, 2, 0, 1)
    assert report["sse"] == {"passed": 1, "failed": 0, "skipped": 1}
    assert report["problems"] == []


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("def test_a(): assert False", None),
        (None, "sse: there is no "),
        ("", "sse: pytest ended with 5"),
        ("raise ValueError", None),
        ("def test_a(): pytest.skip('x')", "sse: all 1 tests were skipped"),
    ],
    ids=["fails", "absent", "empty", "broken", "all skipped"],
)
def test_a_part_that_fails_or_does_not_run_has_failed(outcome, part, problem):
    code, report = outcome(sse=part)
    assert (code, report["sse"]["failed"], report["failed"]) == (1, 1, 1)
    assert [found.startswith(problem) for found in report["problems"]] == ([True] if problem else [])


def test_without_a_browser_the_page_has_failed(outcome, monkeypatch):
    monkeypatch.setattr(check_api.shutil, "which", lambda name: None)
    code, report = outcome(page="def test_a(): pass")
    assert (code, report["page"]) == (1, {"passed": 0, "failed": 1, "skipped": 0})
    assert "install the Debian package `chromium`" in report["problems"][0]


def test_without_jq_the_guide_has_failed(outcome, monkeypatch):
    monkeypatch.setattr(check_api.shutil, "which", lambda name: None if name == "jq" else f"/usr/bin/{name}")
    code, report = outcome(docs="def test_a(): pass")
    assert (code, report["docs"]) == (1, {"passed": 0, "failed": 1, "skipped": 0})
    assert report["problems"] == ["docs: there is no jq on this machine: install the package of that name"]
