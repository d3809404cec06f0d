"""check-data: one line of JSON at the end whatever happens, and an exit code that says whether all is well."""

import json

import pytest

from tools import check_data
from tools.large_dataset import Measured

pytestmark = pytest.mark.data

SMALL = Measured(2_000, {"chats": 100.0}, 100.0)


@pytest.fixture
def outcome(monkeypatch, tmp_path, capfd):
    """Run it with a test file of our own (or none) and scripted measurements; return exit code and report."""
    monkeypatch.setattr(check_data, "FOLDER", tmp_path / "results")

    def run(tests, large):
        def run_rows(report):
            if isinstance(large, BaseException):
                raise large
            check_data.compare(SMALL, large, report)

        monkeypatch.setattr(check_data, "run_rows", run_rows)
        if tests is None:
            monkeypatch.setattr(check_data, "run_tests", lambda arguments, report: None)
        path = tmp_path / "test_it.py"
        path.write_text(f"import pytest\npytestmark = pytest.mark.data\n{tests or ''}\n")
        code = check_data.main([str(path), "-p", "no:cacheprovider"])
        return code, json.loads(capfd.readouterr().out.splitlines()[-1])

    return run


def test_all_well_is_zero_and_counted(outcome):
    large = Measured(200_000, {"chats": 149.0}, 120.0)
    code, report = outcome("def test_a(): pass\ndef test_b(): pytest.skip('x')", large)
    assert (code, report["passed"], report["failed"], report["skipped"]) == (0, 3, 0, 1)
    assert (report["rows"], report["peak_mib"], report["small_peak_mib"]) == (200_000, 149.0, 100.0)


@pytest.mark.parametrize(
    ("tests", "large", "problem"),
    [
        ("def test_a(): assert False", Measured(200_000, {"chats": 100.0}, 100.0), None),
        (None, Measured(200_000, {"chats": 151.0}, 100.0), "prepare chats took 151 MiB"),
        (None, Measured(200_000, {"chats": 100.0}, 151.0), "gateway took 151 MiB"),
        (None, Measured(200_000, {"chats": 1.0}, 1.0, {}, ["lost"]), "200000 rows, lost"),
        (None, RuntimeError("no Redis"), "RuntimeError: no Redis"),
        (None, KeyboardInterrupt(), "KeyboardInterrupt"),
        ("", Measured(200_000, {"chats": 100.0}, 100.0), "pytest ended with 5"),
        ("import nothing_like_it", Measured(200_000, {"chats": 100.0}, 100.0), None),
    ],
    ids=["failing test", "stage grew", "gateway grew", "rows lost", "error", "interrupted", "no tests", "broken test"],
)
def test_whatever_goes_wrong_is_counted_and_said_in_json(outcome, tests, large, problem):
    code, report = outcome(tests, large)
    assert (code, report["failed"] > 0) == (1, True)
    assert problem is None or any(problem in text for text in report["problems"])
