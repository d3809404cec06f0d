"""Checks the promises about data: `make check-data`, or `.venv/bin/python -m tools.check_data [PYTEST_ARG ...]`.

Runs the tests that are marked `data`, then uploads and prepares 200,000 rows beside 2,000 and compares the memory that
gateway and stages took. The last line of the output is one JSON object; the exit code is 0 where nothing failed.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from tests.support.gateway_process import gateway_process
from tests.support.redis_server import redis_server
from tools.large_dataset import Measured, run_size

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "var" / "check-data"
SMALL, LARGE = 2_000, 200_000
GROWTH, GROWTH_MIB = 1.5, 64.0  # a large dataset may take so many times, and so much more than, a small one


def main(arguments: list[str]) -> int:
    """Run everything; print progress, and a line of JSON at the end whatever happens."""
    started = time.monotonic()
    report: dict[str, Any] = {"passed": 0, "failed": 0, "skipped": 0, "rows": 0, "peak_mib": None, "problems": []}
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        run_tests(arguments, report)
        run_rows(report)
    except BaseException as error:
        traceback.print_exc(file=sys.stdout)
        _fail(report, f"{type(error).__name__}: {error}")
    finally:
        report["seconds"] = round(time.monotonic() - started, 1)
        print(json.dumps(report), flush=True)
    return 1 if report["failed"] else 0


def run_tests(arguments: list[str], report: dict[str, Any]) -> None:
    """Run pytest and enter its counts."""
    results = FOLDER / "tests.xml"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-m", "data", f"--junitxml={results}", "-q", *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if not results.is_file():
        _fail(report, f"pytest ended with {code} and left no results")
        return
    suite = ElementTree.parse(results).getroot().find("testsuite")  # noqa: S314 - our own pytest wrote it
    counts = {
        name: int((suite.get(name) if suite is not None else None) or 0)
        for name in ("tests", "failures", "errors", "skipped")
    }
    failed = counts["failures"] + counts["errors"]
    report["failed"] += failed
    report["skipped"] += counts["skipped"]
    report["passed"] += counts["tests"] - failed - counts["skipped"]
    if code and not failed:
        _fail(report, f"pytest ended with {code}")


def run_rows(report: dict[str, Any]) -> None:
    """Run both sizes and compare them; each comparison counts as one check."""
    folder = Path(tempfile.mkdtemp(prefix="rows-", dir=FOLDER))
    try:
        with redis_server(folder / "redis") as redis:
            sizes = []
            for rows in (SMALL, LARGE):  # a gateway each: what it took once, it may keep
                place = folder / str(rows)
                place.mkdir()
                with gateway_process(place, redis.url) as gateway:
                    sizes.append(run_size(rows, place / "run", gateway, lambda text: print(text, flush=True)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    compare(*sizes, report)


def compare(small: Measured, large: Measured, report: dict[str, Any]) -> None:
    """Enter what both sizes took; what grew with the rows, or went wrong, has failed."""
    for measured in (small, large):
        for problem in measured.problems:
            _fail(report, f"{measured.rows} rows, {problem}")
    pairs = {f"prepare {name}": (small.stages[name], peak) for name, peak in large.stages.items()}
    for name, (before, after) in {**pairs, "gateway": (small.gateway, large.gateway)}.items():
        if after > min(before * GROWTH, before + GROWTH_MIB):
            _fail(report, f"{name} took {after:.0f} MiB for {large.rows} rows and {before:.0f} MiB for {small.rows}")
        else:
            report["passed"] += 1
    report["rows"] = large.rows
    report["peak_mib"] = round(max(large.gateway, *large.stages.values()), 1)
    report["small_rows"] = small.rows
    report["small_peak_mib"] = round(max(small.gateway, *small.stages.values()), 1)
    report["mib"] = {
        name: {str(small.rows): round(before, 1), str(large.rows): round(after, 1)}
        for name, (before, after) in {**pairs, "gateway": (small.gateway, large.gateway)}.items()
    }
    report["rows_seconds"] = large.seconds


def _fail(report: dict[str, Any], problem: str) -> None:
    report["failed"] += 1
    report["problems"].append(problem)
    print(f"FAILED: {problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
