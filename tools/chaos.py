"""`make chaos`: every nemesis at full strength, then one line of JSON with what was counted.

    python -m tools.chaos [--seed N] [--jobs N] [pytest's arguments]

The line holds `passed`, `failed`, `violations`, `resume_seconds` (from kill -9 in mid-training to the successor's first
step), and what each nemesis did. The exit code is not 0 when anything failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# What runs at once with how many others: the time to resume is measured alone.
PARTS = {Path("tests/chaos/test_nemeses.py"): 1000, Path("tests/chaos/test_resume.py"): 0}
NOTHING_CHOSEN = 5  # pytest's code when `-k` leaves no test of a file


def main() -> int:
    """Run the suite, show its progress, and print the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="chooses targets and moments; a failure names its seed")
    parser.add_argument("--jobs", type=int, default=3, help="nemeses at once, each on a site of its own")
    arguments, pytest_arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="eyrie-chaos-") as name:
        folder = Path(name)
        environment = {
            **os.environ,
            "EYRIE_CHAOS": "full",
            "EYRIE_CHAOS_SEED": str(arguments.seed),
            "EYRIE_CHAOS_RESULTS": name,
        }
        codes = []
        for file, jobs in PARTS.items():
            command = [sys.executable, "-m", "pytest", str(file), "-v", "-n", str(min(jobs, arguments.jobs))]
            command += ["--dist", "worksteal"]  # the first takes longest, and must not keep others waiting behind it
            command += [f"--junit-xml={folder / file.stem}.xml", *pytest_arguments]
            codes.append(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
        print(json.dumps(summary(folder) | {"seed": arguments.seed}))
    return int(any(code not in (0, NOTHING_CHOSEN) for code in codes))


def summary(folder: Path) -> dict[str, Any]:
    """The figures of a run, from pytest's reports and from what each test has kept."""
    tests = failed = 0
    for file in PARTS:
        report = folder / f"{file.stem}.xml"
        # S314: pytest has just written it
        suite = ElementTree.parse(report).getroot().find("testsuite") if report.exists() else None  # noqa: S314
        if suite is None:
            failed += 1
            continue
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        tests += int(suite.get("tests", 0)) - int(suite.get("skipped", 0))
    kept = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    resumed = kept.pop("resume", {})
    control = kept.pop("control_plain_rq", {})
    return {
        "passed": max(0, tests - failed),
        "failed": failed,
        "violations": sum(len(figures["violations"]) for figures in kept.values()),
        "resume_seconds": resumed.get("seconds"),
        "resumed_from_step": resumed.get("from_step"),
        "control_lost_jobs": control.get("lost"),
        "control_strikes": control.get("counts", {}).get("sigterm"),
        "jobs": sum(figures["jobs"] for figures in kept.values()),
        "nemeses": {name: figures["counts"] for name, figures in kept.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
