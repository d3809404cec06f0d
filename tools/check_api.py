"""Checks the API as a whole: `make check-api`, or `.venv/bin/python -m tools.check_api [PYTEST_ARG ...]`.

Runs four parts: `schemathesis` (every route against the OpenAPI document), `sse` (clients of event streams that are cut
off and come back), `page` (the page in headless Chromium), and `docs` (every `curl` line of docs/api.md, from a bare
clone). The last line of the output is one JSON object with the counts of each part; a part that could not run, or had
nothing to run, has failed. The exit code is 0 where nothing failed.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "var" / "check-api"
PARTS = {
    "schemathesis": ["tests/api/test_schemathesis.py"],
    "sse": [
        "tests/integration/gateway/test_event_streams.py",
        "tests/integration/gateway/test_log_streams.py",
        "tests/integration/gateway/test_slow_readers.py",
    ],
    "page": ["tests/browser"],
    "docs": ["tests/api/test_docs.py"],
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
TOOLS = {"docs": ("curl", "jq")}  # what the lines of docs/api.md call
NO_TESTS = 5  # pytest's exit code where it found none
COUNTS = ("passed", "failed", "skipped")


def main(arguments: list[str]) -> int:
    """Run every part; print progress, and a line of JSON at the end whatever happens."""
    started = time.monotonic()
    report: dict[str, Any] = dict.fromkeys(COUNTS, 0)
    report |= {part: dict.fromkeys(COUNTS, 0) for part in PARTS} | {"problems": []}
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for part, paths in PARTS.items():
            print(f"== {part}", flush=True)
            run_part(part, paths, arguments, report)
    except BaseException as error:
        traceback.print_exc(file=sys.stdout)
        report["problems"].append(f"{type(error).__name__}: {error}")
        report["failed"] += 1
    finally:
        for part in PARTS:
            for name in COUNTS:
                report[name] += report[part][name]
        report["seconds"] = round(time.monotonic() - started, 1)
        print(json.dumps(report), flush=True)
    return 1 if report["failed"] else 0


def run_part(part: str, paths: list[str], arguments: list[str], report: dict[str, Any]) -> None:
    """Run one part's tests and enter its counts; one that cannot run has failed, and says why."""
    if part == "page" and not any(shutil.which(name) for name in (os.environ.get("CHROMIUM", ""), *BROWSERS)):
        fail(part, report, "there is no Chromium on this machine: install the Debian package `chromium`")
        return
    absent = [tool for tool in TOOLS.get(part, ()) if shutil.which(tool) is None]
    if absent:
        fail(part, report, f"there is no {' and no '.join(absent)} on this machine: install the package of that name")
        return
    missing = [path for path in paths if not (ROOT / path).exists()]
    if missing:
        fail(part, report, f"there is no {missing[0]}")
        return
    results = FOLDER / f"{part}.xml"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *paths, "-q", f"--junitxml={results}", *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == NO_TESTS or not results.is_file():
        fail(part, report, f"pytest ended with {code} and ran no test")
        return
    report[part] |= read_counts(results)
    if code and not report[part]["failed"]:
        fail(part, report, f"pytest ended with {code}")
    if not report[part]["passed"] and not report[part]["failed"]:
        fail(part, report, f"all {report[part]['skipped']} tests were skipped")


def read_counts(results: Path) -> dict[str, int]:
    """What pytest wrote of a run."""
    suite = ElementTree.parse(results).getroot().find("testsuite")  # noqa: S314 - our own pytest wrote it
    found = {name: int((suite.get(name) if suite is not None else None) or 0) for name in ("tests", "skipped")}
    failed = sum(int((suite.get(name) if suite is not None else None) or 0) for name in ("failures", "errors"))
    return {"passed": found["tests"] - failed - found["skipped"], "failed": failed, "skipped": found["skipped"]}


def fail(part: str, report: dict[str, Any], problem: str) -> None:
    """Enter a failure that is no test's."""
    report[part]["failed"] += 1
    report["problems"].append(f"{part}: {problem}")
    print(f"FAILED: {part}: {problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
